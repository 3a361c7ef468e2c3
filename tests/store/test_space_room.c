/* SPDX-License-Identifier: Apache-2.0 */
/* How a space is cut up and comes together again (F37). */
#include "rig.h"

static void setup(struct home *h)
{
    rig_sim(&h->r);
    home_open(h, NULL);
}

/* The tests of fragmentation need places, not bytes: an object is begun and aborted. */
static void reserve(struct home *h, uint64_t len, struct chm_object *o)
{
    CHECK_IS(chm_put_begin(h->sp, len, o), 0);
}

/* Filled with small objects and emptied, it takes the largest; with every other one gone it takes
 * none of twice the size, and says how large one could be (F37). */
static void test_checkerboard(void)
{
    struct chm_object *o, big;
    struct chm_space_stats s;
    struct home h;
    uint64_t n;

    setup(&h);
    n = h.r.info.capacity_bytes / PAGE;
    o = calloc(n, sizeof(*o));
    CHECK(o);
    for (uint64_t i = 0; i < n; i++) {
        reserve(&h, 1 + i % PAGE, &o[i]);
    }
    CHECK_IS(chm_put_begin(h.sp, 1, &big), -ENOSPC);
    CHECK_EQ(space_stats(h.sp).free_bytes, 0);
    for (uint64_t i = 0; i < n; i += 2) {
        CHECK_IS(chm_put_abort(h.sp, o[i].id), 0);
    }
    CHECK_IS(chm_put_begin(h.sp, 2 * PAGE, &big), -ENOSPC);
    s = space_stats(h.sp);
    CHECK_EQ(s.largest_free_bytes, PAGE);
    CHECK_EQ(s.free_extents, n / 2);
    CHECK_EQ(s.free_bytes, n / 2 * PAGE);
    reserve(&h, PAGE, &o[0]);
    CHECK_IS(chm_put_abort(h.sp, o[0].id), 0);
    for (uint64_t i = 1; i < n; i += 2) {
        CHECK_IS(chm_put_abort(h.sp, o[i].id), 0);
    }
    space_check_empty(h.sp);
    reserve(&h, h.r.info.capacity_bytes, &big);
    CHECK_IS(chm_put_abort(h.sp, big.id), 0);
    free(o);
    home_close(&h);
}

/* Sizes of two kinds, 100,000 steps: what is counted is what a recount finds; no two overlap; in
 * the end all of it is one extent (F37). */
static void test_bimodal(void)
{
    enum { MANY = 4096, STEPS = 100000 };
    static struct chm_object o[MANY];
    static uint8_t used[16 * MIB / PAGE];
    uint64_t random = 17, refused = 0, pages = 0;
    struct home h;

    setup(&h);
    for (uint32_t i = 0; i < STEPS; i++) {
        uint64_t k = chm_random(&random) % MANY;
        uint64_t len = 1 + chm_random(&random) % (chm_random(&random) % 16 ? 3 * PAGE : MIB);
        uint64_t at = o[k].addr / PAGE, n = chm_round_up(o[k].len, PAGE) / PAGE;

        if (o[k].id) {
            CHECK_IS(chm_put_abort(h.sp, o[k].id), 0);
            memset(used + at, 0, n);
            pages -= n;
            o[k].id = 0;
        } else if (chm_put_begin(h.sp, len, &o[k]) == 0) {
            at = o[k].addr / PAGE;
            n = chm_round_up(len, PAGE) / PAGE;
            CHECK(is_byte(used + at, n, 0));
            memset(used + at, 1, n);
            pages += n;
        } else {
            refused++;
            CHECK(space_stats(h.sp).largest_free_bytes < chm_round_up(len, PAGE));
        }
        CHECK_EQ(space_stats(h.sp).used_bytes, pages * PAGE);
    }
    CHECK(refused > 100);
    CHECK_EQ(space_stats(h.sp).put_refused, refused);
    for (uint64_t i = 0; i < MANY; i++) {
        CHECK(!o[i].id || chm_put_abort(h.sp, o[i].id) == 0);
    }
    space_check_empty(h.sp);
    home_close(&h);
}

int main(void)
{
    test_checkerboard();
    test_bimodal();
    return 0;
}

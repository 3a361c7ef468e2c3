/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cache_random.c - the line cache under random calls, many at a time, against a plain array:
 * every read gives what had been committed when it was issued, page by page, or an error where the
 * drive has errors; and never anything else. On the simulated medium, with faults, and on files.
 */
#include "device/cache_rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;
enum { SPACE = 4 * MIB, PAGES = SPACE / PAGE, HELD = 24, SPAN = 14 };

struct held {
    struct chm_read item;
    uint8_t *buf;
    uint64_t seed_of[SPAN + 2]; /* of the pages it touches, when it was issued */
    bool live;
};

struct world {
    struct rig r;
    uint64_t random, next;
    uint64_t seed_of[PAGES];
    struct held held[HELD];
    uint64_t failed;
    bool faults;
};

static uint64_t some(struct world *w, uint64_t below)
{
    return chm_random(&w->random) % below;
}

static void read_issue(struct world *w, struct held *h)
{
    uint64_t len = 1 + some(w, some(w, 2) ? PAGE : SPAN * PAGE), addr = some(w, SPACE - len);

    if (some(w, 2)) {
        addr = addr / PAGE * PAGE;
        len = chm_round_up(len, PAGE);
        addr = chm_min(addr, SPACE - len);
    }
    h->item = (struct chm_read){.addr = addr, .len = len, .buf = h->buf};
    memset(h->buf, 0x5A, len);
    for (uint64_t p = addr / PAGE; p * PAGE < addr + len; p++) {
        h->seed_of[p - addr / PAGE] = w->seed_of[p];
    }
    CHECK_IS(chm_read_issue(w->r.dev, &h->item, 1), 1);
    h->live = true;
}

static void read_check(struct world *w, struct held *h)
{
    uint64_t addr = h->item.addr, end = addr + h->item.len;
    int rc = chm_wait(w->r.dev, h->item.req, LONG);

    h->live = false;
    CHECK_IS(chm_release(w->r.dev, h->item.req), 0);
    if (w->faults && rc == -EIO) {
        w->failed++;
        return;
    }
    CHECK_IS(rc, 0);
    for (uint64_t at = addr, next; at < end; at = next) {
        next = chm_min((at / PAGE + 1) * PAGE, end);
        CHECK_HOLDS(h->buf + (at - addr), at, next - at, h->seed_of[at / PAGE - addr / PAGE]);
    }
}

/* Given up at any moment: its memory is ours again after a quiesce. Without one it stays lent, and
 * mapped, to the end of the test. */
static void read_give_up(struct world *w, struct held *h)
{
    CHECK_IS(chm_release(w->r.dev, h->item.req), 0);
    if (some(w, 4) == 0) {
        CHECK_IS(chm_quiesce(w->r.dev, LONG), 0);
        munmap(h->buf, SPAN * PAGE + PAGE);
    }
    h->buf = rig_alloc(SPAN * PAGE + PAGE);
    h->live = false;
}

static void range_set(struct world *w, uint64_t page, uint64_t n, uint64_t seed)
{
    for (uint64_t p = page; p < page + n; p++) {
        w->seed_of[p] = seed;
    }
}

static void write_some(struct world *w)
{
    uint64_t n = 1 + some(w, SPAN), page = some(w, PAGES - n);
    struct chm_write item = {.addr = page * PAGE, .len = n * PAGE};
    int32_t status;

    if (chm_write_begin(w->r.dev, &item, 1) != 1) {
        CHECK(item.status == -EAGAIN || (w->faults && item.status == -EIO));
        return;
    }
    fill(item.data, item.addr, item.len, ++w->next);
    if (some(w, 8) == 0) {
        CHECK_IS(chm_write_abort(w->r.dev, &item.id, 1, NULL), 1);
        return;
    }
    CHECK_IS(chm_write_commit(w->r.dev, &item.id, 1, &status), 1);
    range_set(w, page, n, w->next);
}

static void trim_some(struct world *w)
{
    uint64_t n = 1 + some(w, 2 * SPAN), page = some(w, PAGES - n);
    int rc = chm_trim(w->r.dev, page * PAGE, n * PAGE);

    if (rc == 0) {
        range_set(w, page, n, 0);
    } else {
        CHECK(rc == -EAGAIN || rc == -EOPNOTSUPP || (w->faults && rc == -EIO));
    }
}

static void one_round(struct world *w)
{
    struct held *h = &w->held[some(w, HELD)];
    uint64_t what = some(w, 100);

    if (what < 45) {
        if (h->live && what < 5) {
            read_give_up(w, h);
        } else if (h->live) {
            read_check(w, h);
        } else {
            read_issue(w, h);
        }
    } else if (what < 80) {
        write_some(w);
    } else if (what < 83) {
        trim_some(w);
    } else if (what < 85) {
        int rc = chm_flush(w->r.dev, LONG);
        CHECK(rc == 0 || (w->faults && rc == -EIO));
    } else if (!w->r.opt.thread) {
        CHECK(chm_step(w->r.dev, chm_now(w->r.dev) + some(w, 100 * US)) >= 0);
    }
}

static void world_end(struct world *w)
{
    int rc;

    for (unsigned i = 0; i < HELD; i++) {
        if (w->held[i].live) {
            read_check(w, &w->held[i]);
        }
        munmap(w->held[i].buf, SPAN * PAGE + PAGE);
    }
    rc = chm_flush(w->r.dev, LONG);
    CHECK(rc == 0 || (w->faults && rc == -EIO));
    CHECK_IS(chm_quiesce(w->r.dev, LONG), 0);
    lines_check_idle(&w->r);
}

static void go(struct world *w, uint64_t seed, int rounds)
{
    w->random = seed;
    for (unsigned i = 0; i < HELD; i++) {
        w->held[i].buf = rig_alloc(SPAN * PAGE + PAGE);
    }
    for (int i = 0; i < rounds; i++) {
        one_round(w);
    }
    world_end(w);
}

static void on_sim(const char *policy, uint32_t ways, uint32_t fills, uint64_t seed, bool faults)
{
    struct world *w = rig_alloc(sizeof(*w));

    lines_sim(&w->r, policy, 40, ways);
    w->r.opt.npaths = 1 + (uint32_t)(seed % 3);
    w->r.opt.line_fills = fills;
    w->r.opt.flush_policy = chm_flush_policy_name((uint32_t)(seed % 3));
    w->r.opt.fill_on_write = seed % 2;
    w->r.opt.force_transfer_max = seed % 4 == 0 ? 8 * KIB : 0;
    w->r.opt.durability = (uint32_t)(seed % 2);
    w->faults = faults;
    if (faults) {
        w->r.opt.fault.seed = seed;
        w->r.opt.fault.eio_ppm = 100000;
        w->r.opt.fault.short_ppm = 50000;
        w->r.opt.fault.late_ppm = 20000;
        w->r.opt.fault.swap_ppm = 20000;
        w->r.opt.fault.late_ns = 300 * US;
    }
    rig_open(&w->r);
    go(w, seed, 2500);
    CHECK(!faults || w->failed > 0);
    CHECK_IS(chm_close(w->r.dev, LONG), 0);
    munmap(w, sizeof(*w));
}

/* Real files; what is there after close is what was committed. */
static void on_files(const char *media, uint32_t thread, uint64_t seed)
{
    struct world *w = rig_alloc(sizeof(*w));

    rig_options(&w->r, media);
    rig_name_files(&w->r, media, 2);
    rig_format(&w->r, SPACE);
    w->r.opt.policy = "lru";
    w->r.opt.line_bytes = LINE;
    w->r.opt.ways = 4;
    w->r.opt.dram_bytes = MIB + 64 * LINE;
    w->r.opt.thread = thread;
    if (!rig_try_open(&w->r)) {
        printf("io_uring is refused here\n");
        rig_unlink(&w->r);
        munmap(w, sizeof(*w));
        return;
    }
    go(w, seed, 1500);
    CHECK_IS(chm_close(w->r.dev, LONG), 0);
    w->r.opt.policy = "window";
    rig_open(&w->r);
    for (uint64_t p = 0; p < PAGES; p++) {
        rig_expect(&w->r, p * PAGE, PAGE, w->seed_of[p]);
    }
    rig_close(&w->r);
    munmap(w, sizeof(*w));
}

int main(void)
{
    for (uint64_t seed = 1; seed <= 9; seed++) {
        on_sim(chm_policy_name((uint32_t)(1 + seed % 3)), seed % 2 ? 0 : 4, seed % 4 ? 14 : 1, seed,
               false);
        on_sim(chm_policy_name((uint32_t)(1 + seed % 3)), seed % 3 ? 4 : 1, seed % 4 ? 14 : 1, seed,
               true);
    }
    on_files("sync", 0, 21);
    on_files("threads", 1, 22);
    on_files("uring", 0, 23);
    on_files("uring", 1, 24);
    return 0;
}

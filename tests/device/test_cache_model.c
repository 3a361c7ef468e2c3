/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cache_model.c - the line cache against a model of a few lines: hits, misses, fills,
 * evictions and write-backs of random accesses are exactly the model's, for each way of replacing,
 * each shape, and with and without a fetch before whole stores; and what is read is what was
 * written.
 *
 * The model looks through plain arrays and knows nothing of lists. Which set a line belongs to it
 * asks the cache: that hash is no promise.
 */
#include "device/cache_rig.h"

enum { LINES = 24, SPACE = 96, ROUNDS = 3000, PAGES = LINE / PAGE };

struct entry {
    uint64_t number, used, entered; /* used, entered: a count of events */
    bool held, dirty, mark;
};

struct model {
    const char *policy;
    uint32_t ways, sets;
    bool fill_on_write;
    uint64_t clock;
    uint64_t hits, misses, fills, evictions, writebacks;
    struct entry e[LINES];
    uint64_t seed_of[SPACE * PAGES]; /* what each page was last written with; 0: never */
};

/* What `e` is judged by: the smallest goes. */
static uint64_t rank(const struct model *m, const struct entry *e)
{
    return strcmp(m->policy, "lru") == 0 ? e->used : e->entered;
}

static struct entry *oldest(struct model *m, struct entry *set)
{
    struct entry *best = set;

    for (uint32_t i = 1; i < m->ways; i++) {
        best = rank(m, &set[i]) < rank(m, best) ? &set[i] : best;
    }
    return best;
}

/* A full set; clock gives marked ones another round. */
static struct entry *model_victim(struct model *m, struct entry *set)
{
    struct entry *e = oldest(m, set);

    while (strcmp(m->policy, "clock") == 0 && e->mark) {
        e->mark = false;
        e->entered = ++m->clock;
        e = oldest(m, set);
    }
    return e;
}

static struct entry *model_place(struct model *m, struct entry *set)
{
    for (uint32_t i = 0; i < m->ways; i++) {
        if (!set[i].held) {
            return &set[i];
        }
    }
    struct entry *e = model_victim(m, set);
    m->evictions++;
    m->writebacks += e->dirty;
    return e;
}

static void model_access(struct model *m, const struct chm_cache *c, uint64_t number, bool store,
                         bool whole)
{
    struct entry *set = &m->e[chm_cache_set_of(c, number) * m->ways], *e = NULL;

    for (uint32_t i = 0; i < m->ways; i++) {
        if (set[i].held && set[i].number == number) {
            e = &set[i];
        }
    }
    m->hits += e != NULL;
    m->misses += e == NULL;
    if (e) {
        e->mark = true;
    } else {
        e = model_place(m, set);
        *e = (struct entry){.held = true, .number = number, .entered = ++m->clock};
        m->fills += !store || !whole || m->fill_on_write;
    }
    e->used = ++m->clock;
    e->dirty = e->dirty || store;
}

/* Pages [page, page + n) of the space, line by line. */
static void model_range(struct model *m, const struct chm_cache *c, uint64_t page, uint64_t n,
                        bool store)
{
    for (uint64_t at = page; at < page + n;) {
        uint64_t end = chm_min(chm_round_up(at + 1, PAGES), page + n);

        model_access(m, c, at / PAGES, store, at % PAGES == 0 && end - at == PAGES);
        at = end;
    }
}

static void do_store(struct rig *r, struct model *m, uint64_t page, uint64_t n, uint64_t seed)
{
    rig_write(r, page * PAGE, n * PAGE, seed);
    for (uint64_t i = page; i < page + n; i++) {
        m->seed_of[i] = seed;
    }
    while (rig_stats(r)->buffer_used_bytes > 0) { /* one access after the other */
        CHECK(chm_step(r->dev, chm_now(r->dev) + MS) >= 0);
    }
}

static void do_read(struct rig *r, struct model *m, uint64_t page, uint64_t n, uint8_t *buf)
{
    CHECK_IS(rig_read(r, page * PAGE, n * PAGE, buf), 0);
    for (uint64_t i = 0; i < n; i++) {
        CHECK_HOLDS(buf + i * PAGE, (page + i) * PAGE, PAGE, m->seed_of[page + i]);
    }
}

static void compare(struct rig *r, const struct model *m)
{
    const struct chm_stats *s = rig_stats(r);

    CHECK_EQ(s->cache_hits, m->hits);
    CHECK_EQ(s->cache_misses, m->misses);
    CHECK_EQ(s->cache_fills, m->fills);
    CHECK_EQ(s->cache_evictions, m->evictions);
    CHECK_EQ(s->cache_writebacks, m->writebacks);
    CHECK_EQ(s->cache_shared, 0);
}

static void check_against(const char *policy, uint32_t ways, uint32_t percent, bool fill)
{
    struct rig r;
    struct model m = {.policy = policy, .fill_on_write = fill};
    uint8_t *buf = rig_alloc(4 * LINE);
    uint64_t seed = ways * 7 + percent + fill;
    const struct chm_cache *c;

    lines_sim(&r, policy, LINES, ways);
    r.opt.effective_percent = percent;
    r.opt.fill_on_write = fill;
    r.opt.line_fills = 1;
    rig_open(&r);
    c = &r.dev->fw->cache;
    m.sets = ways ? LINES * percent / 100 / ways : 1;
    m.ways = ways ? ways : LINES * percent / 100;
    CHECK_EQ(rig_stats(&r)->cache_sets, m.sets);
    CHECK_EQ(r.stats.cache_lines, m.sets * m.ways);
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        uint64_t n = 1 + chm_random(&seed) % (2 * PAGES);
        uint64_t page =
            chm_random(&seed) % (chm_random(&seed) % 2 ? SPACE * PAGES - n : LINE / 512);
        bool store = chm_random(&seed) % 3 == 0;

        page = chm_random(&seed) % 2 ? page / PAGES * PAGES : page;
        if (store) {
            do_store(&r, &m, page, n, i);
        } else {
            do_read(&r, &m, page, n, buf);
        }
        model_range(&m, c, page, n, store);
        compare(&r, &m);
    }
    CHECK(m.hits > ROUNDS / 10 && m.writebacks > ROUNDS / 20 && m.evictions > m.writebacks);
    lines_check_idle(&r);
    rig_close(&r);
    munmap(buf, 4 * LINE);
}

int main(void)
{
    const char *policies[] = {"lru", "fifo", "clock"};

    for (unsigned i = 0; i < CHM_COUNT(policies); i++) {
        check_against(policies[i], 0, 100, false);
        check_against(policies[i], 4, 100, false);
        check_against(policies[i], 4, 50, true);
        check_against(policies[i], 1, 100, false);
        check_against(policies[i], 0, 75, true);
    }
    return 0;
}

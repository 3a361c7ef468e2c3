/* SPDX-License-Identifier: Apache-2.0 */
/* The interval tree against a sorted array: random operations, all queries, all invariants. */
#include "check.h"
#include "util/tree.h"
#include "util/util.h"

enum {
    NODES = 300,
    SPACE = 1000, /* small, so that starts collide and intervals overlap */
    STEPS = 60000
};

/* The model: nodes that are in the tree, in the order the tree promises. */
struct model {
    struct chm_tree tree;
    struct chm_node node[NODES];
    struct chm_node *order[NODES];
    uint32_t count;
    bool by_length; /* aug is the length (first fit), else the end (overlap) */
    uint64_t random;
};

static uint64_t pick(struct model *m, uint64_t below)
{
    return chm_random(&m->random) % below;
}

static uint64_t aug_of(const struct model *m, const struct chm_node *n)
{
    return m->by_length ? n->end - n->start : n->end;
}

static void model_insert(struct model *m, struct chm_node *n)
{
    uint32_t i = m->count++;

    n->start = pick(m, SPACE);
    n->end = n->start + 1 + pick(m, pick(m, 8) ? 20 : 300);
    n->aug = aug_of(m, n);
    for (; i > 0 && m->order[i - 1]->start > n->start; i--) {
        m->order[i] = m->order[i - 1];
    }
    m->order[i] = n;
    chm_tree_insert(&m->tree, n);
    CHECK(n->linked);
}

static void model_remove(struct model *m, uint32_t i)
{
    struct chm_node *n = m->order[i];

    m->count--;
    for (; i < m->count; i++) {
        m->order[i] = m->order[i + 1];
    }
    chm_tree_remove(&m->tree, n);
    CHECK(!n->linked);
    chm_tree_remove(&m->tree, n); /* harmless */
}

/* Move start and end as far as the place in the order allows. */
static void model_refresh(struct model *m, uint32_t i)
{
    struct chm_node *n = m->order[i];
    uint64_t low = i > 0 ? m->order[i - 1]->start : 0;
    uint64_t high = i + 1 < m->count ? m->order[i + 1]->start : SPACE;

    n->start = low + pick(m, high - low + 1);
    n->end = n->start + 1 + pick(m, 100);
    n->aug = aug_of(m, n);
    chm_tree_refresh(n);
}

static uint32_t depth_of(const struct chm_node *n)
{
    uint32_t depth = 1;

    while (n->parent) {
        n = n->parent;
        depth++;
    }
    return depth;
}

static uint32_t depth_limit(uint64_t count)
{
    return count ? 4 * (64 - (uint32_t)__builtin_clzll(count)) + 8 : 0;
}

static void check_node(const struct chm_node *n)
{
    uint64_t max = n->aug;

    if (n->left) {
        CHECK(n->left->parent == n && n->left->priority <= n->priority);
        max = chm_max(max, n->left->aug_max);
    }
    if (n->right) {
        CHECK(n->right->parent == n && n->right->priority <= n->priority);
        max = chm_max(max, n->right->aug_max);
    }
    CHECK_EQ(n->aug_max, max);
}

static void check_structure(struct model *m)
{
    struct chm_node *n = chm_tree_first(&m->tree), *last = NULL;

    CHECK_EQ(m->tree.count, m->count);
    for (uint32_t i = 0; i < m->count; i++) {
        CHECK(n == m->order[i]);
        CHECK(chm_tree_prev(n) == last);
        CHECK(depth_of(n) <= depth_limit(m->count));
        check_node(n);
        last = n;
        n = chm_tree_next(n);
    }
    CHECK(n == NULL);
}

/* From place i on, the first node that touches the range. */
static struct chm_node *model_overlap(struct model *m, uint32_t i, uint64_t start, uint64_t end)
{
    for (; i < m->count; i++) {
        if (m->order[i]->start < end && m->order[i]->end > start) {
            return m->order[i];
        }
    }
    return NULL;
}

static void check_overlap(struct model *m)
{
    uint64_t start = pick(m, SPACE + 100), end = start + 1 + pick(m, pick(m, 2) ? 5 : 400);
    struct chm_node *want = model_overlap(m, 0, start, end);
    struct chm_node *got = chm_tree_overlap(&m->tree, start, end);

    CHECK(got == want);
    for (uint32_t i = 0; i < m->count && got; i++) {
        if (m->order[i] == got) {
            want = model_overlap(m, i + 1, start, end);
            got = chm_tree_overlap_next(got, start, end);
            CHECK(got == want);
        }
    }
    if (m->count) { /* also from a node that is not an answer itself */
        uint32_t i = (uint32_t)pick(m, m->count);

        got = chm_tree_overlap_next(m->order[i], start, end);
        CHECK(got == model_overlap(m, i + 1, start, end));
    }
    CHECK(chm_tree_overlap(&m->tree, start, start) == NULL); /* nothing touches nothing */
}

static void check_fit(struct model *m)
{
    uint64_t want = 1 + pick(m, 320);
    struct chm_node *expected = NULL;

    for (uint32_t i = 0; i < m->count && !expected; i++) {
        expected = m->order[i]->end - m->order[i]->start >= want ? m->order[i] : NULL;
    }
    CHECK(chm_tree_fit(&m->tree, want) == expected);
}

static void check_floor(struct model *m)
{
    uint64_t at = pick(m, SPACE + 10);
    struct chm_node *expected = NULL;

    for (uint32_t i = 0; i < m->count && m->order[i]->start <= at; i++) {
        expected = m->order[i];
    }
    CHECK(chm_tree_floor(&m->tree, at) == expected);
}

static void step(struct model *m, uint64_t target)
{
    struct chm_node *n = &m->node[pick(m, NODES)];
    bool grow = m->count < target ? pick(m, 4) > 0 : pick(m, 4) == 0;

    if (grow && !n->linked) {
        model_insert(m, n);
    } else if (m->count && pick(m, 2)) {
        model_remove(m, (uint32_t)pick(m, m->count));
    } else if (m->count) {
        model_refresh(m, (uint32_t)pick(m, m->count));
    }
}

static void test_random(bool by_length)
{
    static struct model m;

    m = (struct model){.by_length = by_length, .random = 7 + by_length};
    chm_tree_init(&m.tree);
    for (uint32_t i = 0; i < STEPS; i++) {
        /* Swing between empty and full. */
        step(&m, (i / 2000) % 2 ? 0 : NODES);
        check_floor(&m);
        if (by_length) {
            check_fit(&m);
        } else {
            check_overlap(&m);
        }
        if (i % 37 == 0) {
            check_structure(&m);
        }
    }
}

/* Sorted input is the worst case of a plain binary tree. */
static void test_depth_of_sorted(void)
{
    enum { MANY = 1 << 16 };
    struct chm_tree t;
    struct chm_node *node = calloc(MANY, sizeof(*node));
    uint32_t deepest = 0;

    CHECK(node);
    chm_tree_init(&t);
    for (uint32_t i = 0; i < MANY; i++) {
        node[i].start = i;
        node[i].aug = node[i].end = i + 1;
        chm_tree_insert(&t, &node[i]);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        deepest = (uint32_t)chm_max(deepest, depth_of(&node[i]));
    }
    CHECK(deepest <= depth_limit(MANY));
    for (uint32_t i = 0; i < MANY; i++) {
        chm_tree_remove(&t, &node[i]);
    }
    CHECK(t.root == NULL && t.count == 0);
    free(node);
}

/* The same operations give the same shape, so that runs repeat. */
static void test_shape_repeats(void)
{
    static struct chm_node node[2][100];
    struct chm_tree t[2];

    for (uint32_t k = 0; k < 2; k++) {
        chm_tree_init(&t[k]);
        for (uint32_t i = 0; i < 100; i++) {
            node[k][i] = (struct chm_node){.start = i * 7 % 100, .end = 200, .aug = 200};
            chm_tree_insert(&t[k], &node[k][i]);
        }
    }
    for (uint32_t i = 0; i < 100; i++) {
        CHECK_EQ(depth_of(&node[1][i]), depth_of(&node[0][i]));
        CHECK_EQ(node[1][i].priority, node[0][i].priority);
    }
}

/* Addresses up to the very end of the number range. */
static void test_extremes(void)
{
    struct chm_tree t;
    struct chm_node n = {.start = UINT64_MAX - 1, .end = UINT64_MAX, .aug = UINT64_MAX};

    chm_tree_init(&t);
    CHECK(!chm_tree_first(&t) && !chm_tree_overlap(&t, 0, UINT64_MAX));
    CHECK(!chm_tree_fit(&t, 1) && !chm_tree_fit(&t, 0) && !chm_tree_floor(&t, UINT64_MAX));
    chm_tree_insert(&t, &n);
    CHECK(chm_tree_overlap(&t, 0, UINT64_MAX) == &n);
    CHECK(chm_tree_overlap(&t, UINT64_MAX - 1, UINT64_MAX) == &n);
    CHECK(!chm_tree_overlap(&t, 0, UINT64_MAX - 1));
    CHECK(!chm_tree_overlap_next(&n, 0, UINT64_MAX));
    CHECK(chm_tree_floor(&t, UINT64_MAX) == &n && !chm_tree_floor(&t, UINT64_MAX - 2));
}

static void insert_twice(void)
{
    struct chm_tree t;
    struct chm_node n = {.start = 1, .end = 2, .aug = 2};

    chm_tree_init(&t);
    chm_tree_insert(&t, &n);
    chm_tree_insert(&t, &n);
}

static void insert_empty(void)
{
    struct chm_tree t;
    struct chm_node n = {.start = 2, .end = 2, .aug = 2};

    chm_tree_init(&t);
    chm_tree_insert(&t, &n);
}

int main(void)
{
    test_random(false);
    test_random(true);
    test_depth_of_sorted();
    test_shape_repeats();
    test_extremes();
    check_aborts(insert_twice);
    check_aborts(insert_empty);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which I/Os are handed back: by time, and of equal times as they came. */
#include "rig.h"

#include "media/io_heap.h"

enum { ROUNDS = 20000, MOST = 300 };

/* Random pushes and pops against a plain search, at every fill from empty to full. */
static void check_order(uint32_t max, uint64_t times)
{
    static struct chm_io io[MOST];
    uint64_t at[MOST], came[MOST], seed = max, number = 0;
    struct chm_io_heap h;
    uint32_t held[MOST], n = 0;

    CHECK_EQ(chm_io_heap_open(&h, max), 0);
    CHECK_EQ(chm_io_heap_next(&h), CHM_FOREVER_NS);
    for (uint32_t i = 0; i < max; i++) {
        held[i] = i;
    }
    for (uint64_t round = 0; round < ROUNDS; round++) {
        bool push = n == 0 || (n < max && chm_random(&seed) % 2);
        uint32_t first = 0;
        if (push) { /* held[0 .. n-1] are in the heap */
            uint32_t which = held[n++];
            at[which] = chm_random(&seed) % times;
            came[which] = number++;
            chm_io_heap_push(&h, at[which], &io[which]);
            continue;
        }
        for (uint32_t i = 1; i < n; i++) {
            uint32_t a = held[i], b = held[first];
            first = at[a] < at[b] || (at[a] == at[b] && came[a] < came[b]) ? i : first;
        }
        uint32_t which = held[first];
        CHECK_EQ(chm_io_heap_next(&h), at[which]);
        CHECK(chm_io_heap_pop(&h) == &io[which]);
        held[first] = held[--n];
        held[n] = which;
    }
    chm_io_heap_close(&h);
}

int main(void)
{
    for (uint32_t max = 1; max < 12; max++) {
        check_order(max, 8);
    }
    check_order(MOST, 50);
    check_order(MOST, UINT64_MAX);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * directory.c - from key to entry number: open addressing with linear probing, never rehashed.
 *
 * A slot is 4 bytes: the entry number + 1 in the low number_bits, above it some bits of the key's
 * hash, so that a probe that is not the key seldom costs the cache line of an entry. 0 is empty.
 * There are max_objects / 0.7 slots. A slot's home is hash * slots / 2^64, so that any number of
 * slots will do. Removal shifts what follows back, so there are no tombstones: between an entry's
 * home and its slot no slot is ever empty.
 */
#include "store/kv.h"

uint64_t chm_kv_directory_slots(uint32_t max_objects)
{
    return (uint64_t)max_objects * 10 / 7 + 2;
}

static uint64_t hash_of(uint32_t ns, const struct chm_key *key)
{
    uint64_t a, b;

    memcpy(&a, key->bytes, 8);
    memcpy(&b, key->bytes + 8, 8);
    a ^= (uint64_t)ns * UINT64_C(0x9E3779B97F4A7C15);
    a = (a ^ (a >> 32)) * UINT64_C(0xD6E8FEB86659FD93);
    b = (b ^ (b >> 29)) * UINT64_C(0xBF58476D1CE4E5B9);
    a ^= b + (a << 13) + (a >> 7);
    a = (a ^ (a >> 31)) * UINT64_C(0x94D049BB133111EB);
    return a ^ (a >> 33);
}

static uint64_t home_of(const struct chm_store *s, uint64_t hash)
{
    return (uint64_t)(((unsigned __int128)hash * s->slot_count) >> 64);
}

/* The bits of a slot above the number. They come from the low end of the hash, the home from its
 * high end. */
static uint32_t tag_of(const struct chm_store *s, uint64_t hash)
{
    return s->number_bits == 32 ? 0 : (uint32_t)hash << s->number_bits;
}

static uint32_t number_in(const struct chm_store *s, uint32_t slot)
{
    return (s->number_bits == 32 ? slot : slot & ((1u << s->number_bits) - 1)) - 1;
}

static bool slot_may_be(const struct chm_store *s, uint32_t slot, uint32_t tag)
{
    return s->number_bits == 32 || (slot ^ tag) >> s->number_bits == 0;
}

static uint64_t next_slot(const struct chm_store *s, uint64_t at)
{
    return at + 1 == s->slot_count ? 0 : at + 1;
}

/* Ends because a slot is empty: there are more slots than entries. */
static uint32_t find_from(const struct chm_store *s, uint64_t hash, uint32_t ns,
                          const struct chm_key *key)
{
    uint32_t tag = tag_of(s, hash);

    for (uint64_t at = home_of(s, hash); s->slots[at]; at = next_slot(s, at)) {
        const struct chm_kv_entry *e;

        if (!slot_may_be(s, s->slots[at], tag)) {
            continue;
        }
        e = chm_kv_at(s, number_in(s, s->slots[at]));
        if (e->ns == ns && memcmp(&e->key, key, sizeof(*key)) == 0) {
            return number_in(s, s->slots[at]);
        }
    }
    return CHM_KV_NONE;
}

uint32_t chm_kv_find(const struct chm_store *s, uint32_t ns, const struct chm_key *key)
{
    return find_from(s, hash_of(ns, key), ns, key);
}

/* First all slots, then all entries that the first likely slot names are on their way before any is
 * looked at. */
void chm_kv_find_many(const struct chm_store *s, uint32_t ns, const struct chm_key *keys,
                      uint32_t n, uint32_t *numbers)
{
    uint64_t hash[KV_STEP_KEYS];

    CHM_ASSERT(n <= KV_STEP_KEYS);
    for (uint32_t i = 0; i < n; i++) {
        hash[i] = hash_of(ns, &keys[i]);
        __builtin_prefetch(&s->slots[home_of(s, hash[i])]);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = home_of(s, hash[i]);
        uint32_t tag = tag_of(s, hash[i]);

        while (s->slots[at] && !slot_may_be(s, s->slots[at], tag)) {
            at = next_slot(s, at);
        }
        if (s->slots[at]) {
            __builtin_prefetch(chm_kv_at(s, number_in(s, s->slots[at])));
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        numbers[i] = find_from(s, hash[i], ns, &keys[i]);
    }
}

void chm_kv_directory_add(struct chm_store *s, uint32_t number)
{
    const struct chm_kv_entry *e = chm_kv_at(s, number);
    uint64_t hash = hash_of(e->ns, &e->key), at = home_of(s, hash);

    while (s->slots[at]) {
        at = next_slot(s, at);
    }
    s->slots[at] = tag_of(s, hash) | (number + 1);
}

static uint64_t slot_of(const struct chm_store *s, uint32_t number)
{
    const struct chm_kv_entry *e = chm_kv_at(s, number);
    uint64_t at = home_of(s, hash_of(e->ns, &e->key));

    while (number_in(s, s->slots[at]) != number) {
        CHM_ASSERT(s->slots[at]);
        at = next_slot(s, at);
    }
    return at;
}

/* How far a slot lies behind another, going round. */
static uint64_t distance(const struct chm_store *s, uint64_t from, uint64_t to)
{
    return to >= from ? to - from : to + s->slot_count - from;
}

void chm_kv_directory_remove(struct chm_store *s, uint32_t number)
{
    uint64_t hole = slot_of(s, number);

    for (uint64_t at = next_slot(s, hole); s->slots[at]; at = next_slot(s, at)) {
        const struct chm_kv_entry *e = chm_kv_at(s, number_in(s, s->slots[at]));
        uint64_t home = home_of(s, hash_of(e->ns, &e->key));

        /* It may move to the hole if that is not before its home. */
        if (distance(s, home, at) >= distance(s, hole, at)) {
            s->slots[hole] = s->slots[at];
            hole = at;
        }
    }
    s->slots[hole] = 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - the store on the device, byte for byte (docs/spec.md, section 9). Little endian.
 *
 *     base                superblock 0
 *     base + 1 MiB        superblock 1
 *     names_off           namespace pages   two slots each, side by side, written in turn
 *     index_off           index pages       two slots each
 *     order_off           order pages       written at a clean close
 *     journal_off         journal           a ring of pages
 *     data_off            objects
 *
 * Every page of metadata is 4096 bytes and occupies a unit of the device, which is larger where the
 * drive's blocks are.
 */
#ifndef CHM_STORE_LAYOUT_H
#define CHM_STORE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "chm.h"

enum {
    CHM_KV_PAGE = 4096,
    CHM_KV_VERSION = 1,
    CHM_KV_SUM_XXH3 = 1,
    CHM_KV_INDEX_ENTRIES = 63, /* of an index page */
    CHM_KV_NAMES_RECORDS = 14, /* of a namespace page */
    CHM_KV_ORDER_NUMBERS = 1008,
    CHM_KV_SUPER_STEP = 1 << 20,
    CHM_KV_HEAD_SUMS = 320, /* offset of the chunk sums in an object's header */
    CHM_KV_HEAD_PAGES_MAX = 3,
};

#define CHM_KV_NONE UINT32_MAX

/* Flags beside the page number in chm_kv_entry.place. */
#define CHM_KV_PLACE_BITS 40
#define CHM_KV_HAS_HEAD (UINT64_C(1) << 40)
#define CHM_KV_SPLIT (UINT64_C(1) << 41)

/* In memory and on the device. What is only of use in memory is 0 on the device. */
struct chm_kv_entry {
    struct chm_key key;
    uint64_t sum;      /* of the payload, or of the header pages; mixed with key, ns and length */
    uint64_t place;    /* 4 KiB page of the data space, and flags */
    uint32_t len;      /* payload bytes, 1 .. 1 GiB */
    uint32_t ns;       /* number of the namespace */
    uint32_t parent;   /* entry number, or CHM_KV_NONE */
    uint32_t children; /* memory; on the device the sum of this entry, low half, with this as 0 */
    uint32_t prev;     /* memory: newer neighbour; on the device the low half of the round */
    uint32_t next;     /* memory: older neighbour, or next free entry */
    uint32_t stamp;    /* counts batches of puts and touches: when it was used last */
    uint16_t pins;     /* memory only: leases and jobs that use it */
    uint16_t state;    /* memory: enum chm_kv_state; on the device 1, or 0: no object */
};

_Static_assert(sizeof(struct chm_kv_entry) == 64, "an index entry is 64 bytes");
_Static_assert(offsetof(struct chm_kv_entry, sum) == 16, "layout");
_Static_assert(offsetof(struct chm_kv_entry, place) == 24, "layout");
_Static_assert(offsetof(struct chm_kv_entry, len) == 32, "layout");
_Static_assert(offsetof(struct chm_kv_entry, ns) == 36, "layout");
_Static_assert(offsetof(struct chm_kv_entry, parent) == 40, "layout");
_Static_assert(offsetof(struct chm_kv_entry, children) == 44, "layout");
_Static_assert(offsetof(struct chm_kv_entry, prev) == 48, "layout");
_Static_assert(offsetof(struct chm_kv_entry, stamp) == 56, "layout");
_Static_assert(offsetof(struct chm_kv_entry, state) == 62, "layout");

/* A superblock: the newest generation with a right sum counts. */
struct chm_kv_super {
    uint64_t sum;     /* of all bytes behind it */
    uint8_t magic[8]; /* "CHMSTORE" */
    uint32_t version;
    uint32_t features; /* who does not know one of these bits must not open; none yet */
    uint32_t sum_kind;
    uint32_t unit_bytes; /* what a page of metadata occupies */
    uint8_t id[16];      /* random, one for each format */
    uint64_t generation;
    uint64_t base, len;                                              /* part of the device */
    uint64_t names_off, index_off, order_off, journal_off, data_off; /* from base */
    uint64_t data_bytes;
    uint32_t max_objects, max_namespaces;
    uint32_t names_pages, index_pages, order_pages, journal_pages;
    uint64_t journal_tail;     /* first journal page that recovery needs */
    uint64_t journal_tail_sum; /* sum of the page before it */
    uint64_t round;            /* number of the last checkpoint */
    uint32_t epoch;            /* of the opening that wrote this */
    uint32_t clean;            /* 1: closed, the index is whole */
    uint32_t index_high;       /* index pages beyond were never used */
    uint32_t order_count;      /* clean: numbers in the order pages */
    uint32_t stamp;
    uint32_t zero;
    uint64_t life_bytes;   /* written for objects and metadata until then, since format */
    uint64_t life_open_ns; /* open until then, since format */
    uint8_t rest[CHM_KV_PAGE - 208];
};

_Static_assert(sizeof(struct chm_kv_super) == CHM_KV_PAGE, "a superblock is a page");
_Static_assert(offsetof(struct chm_kv_super, magic) == 8, "layout");
_Static_assert(offsetof(struct chm_kv_super, id) == 32, "layout");
_Static_assert(offsetof(struct chm_kv_super, generation) == 48, "layout");
_Static_assert(offsetof(struct chm_kv_super, names_off) == 72, "layout");
_Static_assert(offsetof(struct chm_kv_super, data_bytes) == 112, "layout");
_Static_assert(offsetof(struct chm_kv_super, max_objects) == 120, "layout");
_Static_assert(offsetof(struct chm_kv_super, journal_tail) == 144, "layout");
_Static_assert(offsetof(struct chm_kv_super, epoch) == 168, "layout");
_Static_assert(offsetof(struct chm_kv_super, life_bytes) == 192, "layout");
_Static_assert(offsetof(struct chm_kv_super, rest) == 208, "layout");

enum chm_kv_kind {
    CHM_KV_INDEX = 0x58494b43,   /* "CKIX" */
    CHM_KV_NAMES = 0x4d4e4b43,   /* "CKNM" */
    CHM_KV_ORDER = 0x524f4b43,   /* "CKOR" */
    CHM_KV_JOURNAL = 0x524a4b43, /* "CKJR" */
};

/* The head of every other page of metadata. */
struct chm_kv_head {
    uint64_t sum;    /* of all bytes of the page behind it */
    uint32_t kind;   /* enum chm_kv_kind */
    uint32_t number; /* which page of its kind; journal: epoch */
    uint8_t id[16];  /* of the store */
    uint64_t seq;    /* journal: of this page; index, names: the last journal page it includes */
    uint64_t round;  /* index, names: checkpoint that wrote it, the newest counts; journal: sum of
                        the page before; order: generation of the clean superblock */
    uint32_t count;  /* journal: bytes of records; order: numbers */
    uint32_t zero[3];
};

_Static_assert(sizeof(struct chm_kv_head) == 64, "a page head is 64 bytes");
_Static_assert(offsetof(struct chm_kv_head, id) == 16, "layout");
_Static_assert(offsetof(struct chm_kv_head, seq) == 32, "layout");
_Static_assert(offsetof(struct chm_kv_head, count) == 48, "layout");

struct chm_kv_name {
    uint64_t quota_bytes;
    uint64_t id; /* hash of the name */
    uint32_t len;
    uint32_t used; /* 1: a namespace */
    uint8_t name[256];
    uint64_t sum; /* of this record, with this as 0 */
};

_Static_assert(sizeof(struct chm_kv_name) == 288, "layout");

/* What a namespace record in the journal holds. */
struct chm_kv_name_record {
    struct chm_kv_name name;
    uint64_t sum; /* of the name, tied to the journal page */
};

/* A page of metadata. */
struct chm_kv_page {
    struct chm_kv_head head;
    union {
        struct chm_kv_entry entry[CHM_KV_INDEX_ENTRIES];
        struct chm_kv_name name[CHM_KV_NAMES_RECORDS];
        uint32_t order[CHM_KV_ORDER_NUMBERS];
        uint8_t bytes[CHM_KV_PAGE - sizeof(struct chm_kv_head)];
    };
};

_Static_assert(sizeof(struct chm_kv_page) == CHM_KV_PAGE, "a page of metadata is a page");

enum chm_kv_record_kind {
    CHM_KV_PUT = 1,    /* body: the entry; its `prev` is the low half of the journal page */
    CHM_KV_DELETE = 2, /* body: 8 bytes, a sum tied to number and journal page */
    CHM_KV_NAME = 3,   /* body: struct chm_kv_name_record */
};

/* A record in a journal page. */
struct chm_kv_record {
    uint16_t kind;
    uint16_t bytes;  /* head and body */
    uint32_t number; /* of the entry or namespace */
};

_Static_assert(sizeof(struct chm_kv_record) == 8, "layout");

struct chm_kv_extent {
    uint64_t page, pages; /* of the data space, 4 KiB each */
};

/* In front of an object of more than one chunk, or of more than one extent: 1 to 3 pages. Chunk
 * sums (8 bytes each) follow at CHM_KV_HEAD_SUMS; the rest of the last page is 0. */
struct chm_kv_object_head {
    uint8_t magic[8]; /* "CHMOBJ\r\n" */
    uint64_t len;
    struct chm_key key;
    uint32_t ns, chunks, extents, pages; /* pages: of this header */
    uint64_t zero[2];
    struct chm_kv_extent extent[CHM_STORE_EXTENTS_MAX];
};

_Static_assert(sizeof(struct chm_kv_object_head) == CHM_KV_HEAD_SUMS, "layout");

#endif

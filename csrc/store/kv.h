/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv.h - the parts of an open store, shared by the files that make it up.
 *
 * An entry's life (entries.c):
 *
 *   FREE -> PUTTING -> FRESH -> LOGGED -> LIVE           visible from FRESH on
 *              |         |         |        |
 *            abort    removed   removed   removed        no longer in the directory
 *              |         v         v        v
 *              |       STALE    DOOMED -> DYING -> GONE -> RETIRED -> (GHOST) -> FREE
 *              +-----> FREE
 *
 *   FRESH    whole in the write buffer or on the drive; no record of it is in the journal
 *   LOGGED   its put record is in the journal, not known to be durable
 *   LIVE     durable
 *   STALE    removed before it was recorded: nothing to record
 *   DOOMED   removed while its put record was on its way: becomes DYING when that has landed
 *   DYING    durable on the drive, removed here; its delete record has to be written
 *   GONE     the delete record is in the journal, not known to be durable
 *   RETIRED  nothing on the drive speaks of it any more; its space is free when nobody pins it
 *   GHOST    without space; keeps its number while entries name it as their parent
 *
 * Whoever takes an entry through these states is the worker or a caller with the lock; each entry
 * is on at most one of the lists of sync.c, which are linked through chm_store.links.
 *
 * Lock order: one lock. Device calls that may wait (room in the write buffer) are made without it.
 */
#ifndef CHM_STORE_KV_H
#define CHM_STORE_KV_H

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "host/door.h"
#include "store/extents.h"
#include "store/layout.h"
#include "store/sum.h"
#include "util/util.h"

enum chm_kv_state {
    KV_FREE,
    KV_PUTTING,
    KV_FRESH,
    KV_LOGGED,
    KV_LIVE,
    KV_STALE,
    KV_DOOMED,
    KV_DYING,
    KV_GONE,
    KV_RETIRED,
    KV_GHOST,
    KV_STATE_MASK = 0xff,
    KV_ORPHAN = 0x100, /* an ancestor was lost: of no use, first to go */
};

enum {
    KV_HEADS = 64,    /* objects with a header that are read at once */
    KV_SPLITS = 1024, /* objects in more than one extent */
    KV_HEAD_BYTES = CHM_KV_HEAD_PAGES_MAX * CHM_KV_PAGE,
    KV_MAPS = 32,
    KV_STEP_KEYS = 64, /* keys looked up with the cache lines of all of them on their way */
};

static const uint64_t KV_OBJECT_MAX = 1ull << 30;
static const uint64_t KV_DEVICE_NS = 60ull * CHM_SECOND; /* format and open wait this long */

struct chm_kv_list {
    uint32_t first, last; /* entry numbers, linked through links; CHM_KV_NONE: empty */
    uint32_t count;
};

/* A namespace: what is on the device, and what is counted here. */
struct chm_kv_space {
    struct chm_kv_name name;
    uint64_t used_bytes, payload_bytes, objects;
    uint32_t newest, oldest; /* ends of the recency list of its visible entries */
    bool logged;             /* its record is in the journal or in a page */
};

struct chm_kv_split {
    uint32_t entry; /* CHM_KV_NONE: unused */
    uint32_t extents;
    struct chm_kv_extent extent[CHM_STORE_EXTENTS_MAX];
};

/* Where an object lies; device addresses. */
struct chm_kv_where {
    uint32_t extents;
    struct chm_range extent[CHM_STORE_EXTENTS_MAX];
};

struct chm_kv_evict {
    const char *name;
    bool chains; /* keeps parents; only ends of chains are victims */
    /* A new visible entry, whose parent is e->parent. */
    void (*insert)(struct chm_store *s, uint32_t number);
    /* It was used; n numbers in the order of the keys, CHM_KV_NONE: skip. */
    void (*touch)(struct chm_store *s, const uint32_t *numbers, uint32_t n);
};

/* A read that was cancelled, until the device has let go of its memory. */
struct chm_kv_cancelled {
    struct chm_cell *cell;
    uint32_t gen;
};

/* One key of a get or lease job (get.c). */
struct chm_kv_task {
    struct chm_link link;
    struct chm_kv_job *job;
    struct chm_kv_lease *lease; /* or NULL */
    uint32_t index;             /* of the key */
    uint32_t entry;             /* pinned */
    const struct chm_part *parts;
    uint32_t nparts;
    uint32_t part; /* where payload byte `sent` lies */
    uint64_t part_off;
    uint64_t len;                   /* payload bytes */
    uint64_t sent;                  /* asked for */
    uint64_t done;                  /* there, from the front */
    uint64_t checked;               /* whose sums were right */
    uint32_t xfer_first, xfer_last; /* in the order of their offsets; CHM_KV_NONE: none */
    int32_t head;                   /* header buffer, -1: none */
    int32_t error;
    uint64_t head_req; /* 0: none is on its way */
    uint8_t state;
};

/* One device read of a task (xfer.c). */
struct chm_kv_xfer {
    uint64_t req;
    uint64_t addr, off, len; /* on the device; in the payload */
    uint64_t skip;           /* staged: bytes in front that are not asked for */
    uint8_t *to;             /* direct: where it goes */
    struct chm_cell *cell;   /* cancelled */
    uint32_t gen;
    uint32_t next;
    uint8_t state;
    bool staged;
};

struct chm_kv_lease {
    uint32_t gen, entry; /* entry CHM_KV_NONE: unused */
    uint32_t n;
    uint32_t next_free;
    uint64_t req[CHM_STORE_EXTENTS_MAX];
};

enum chm_kv_job_state { KV_JOB_FREE, KV_JOB_RUNNING, KV_JOB_ENDED };

struct chm_kv_job {
    struct chm_link link; /* running: of its kind, in order; ended: to be drained; or free */
    struct chm_store_job job;
    uint64_t begin_ns, deadline_ns;
    uint64_t target; /* sync: flush that has to be durable */
    uint64_t losses; /* sync: of before it */
    uint32_t gen;
    uint32_t open; /* keys without a status */
    uint32_t ok;
    uint32_t cursor; /* put: key that is being put */
    uint32_t part;   /* put: its first part */
    uint32_t before; /* put: entry of the key before, pinned; CHM_KV_NONE: none */
    int32_t result;
    int32_t stop; /* why it has to end, or 0 */
    uint8_t state;
    bool broken;                /* put: a key of the chain was refused */
    bool orphan;                /* put: its parent is not there */
    bool touch;                 /* put: `before` was used, and that is not yet noted */
    uint64_t first_ns, last_ns; /* device work: begun, and its newest end; 0: not yet (slow.c) */
    uint64_t work_ns;           /* checksums and copying */
    uint64_t bytes;             /* payload */
};

/* The put that is under way (put.c). */
struct chm_kv_putter {
    uint32_t entry; /* CHM_KV_NONE: none */
    uint64_t len, done;
    uint64_t head_bytes; /* space in front of the payload */
    struct chm_kv_where where;
    uint32_t part;
    uint64_t part_off;
    uint64_t retry_ns;
    struct chm_sum sum; /* of the chunk in hand */
    uint8_t *head;      /* header being made, KV_HEAD_BYTES */
};

/* Making things durable (sync.c). */
struct chm_kv_sync {
    struct chm_kv_list fresh;     /* since the last flush began */
    struct chm_kv_list flushing;  /* whose bytes the flush in flight covers */
    struct chm_kv_list ready;     /* bytes durable: to be recorded */
    struct chm_kv_list dying;     /* to be recorded as deleted */
    struct chm_kv_list recording; /* in the journal page that is being filled */
    struct chm_kv_list logged;    /* in pages written since the last flush began */
    struct chm_kv_list logging;   /* whose records the flush in flight covers */
    uint64_t flush;               /* handle of the flush in flight, 0: none */
    uint64_t began, landed;       /* flushes, counted */
    uint64_t covers; /* what flushes up to this one made durable is recorded by the one in flight */
    uint64_t durable;  /* and that is durable */
    uint64_t wanted;   /* sync jobs wait until durable is this */
    uint64_t begun_ns; /* when the last flush began */
    uint64_t last_ns;  /* when the last round began, or there was nothing to do */
    uint64_t fresh_bytes;
    uint64_t losses;   /* flushes that failed with objects in them */
    bool hurry;        /* space is wanted back */
    bool round;        /* the last flush began a round: its records want another one */
    uint32_t failures; /* in a row */
};

struct chm_kv_journal {
    uint64_t next;      /* number of the next page */
    uint64_t durable;   /* pages up to here are */
    uint64_t flushing;  /* pages up to here are covered by the flush in flight */
    uint64_t tail;      /* first that recovery needs, by the newest superblock */
    uint64_t safe_tail; /* by both */
    uint64_t *sums;     /* of each page of the ring */
    uint64_t prev_sum;
    struct chm_kv_page *unsafe; /* pages written and not durable, a ring of KV_UNSAFE */
    uint64_t rewrite;           /* next page to write again after a failed flush, or UINT64_MAX */
    struct chm_kv_page page;    /* being filled */
};

enum { KV_UNSAFE = 64 };

enum chm_kv_check_state { KV_CHECK_IDLE, KV_CHECK_PAGES, KV_CHECK_FLUSH, KV_CHECK_SUPER };

/* What other processes may see (publish.c). */
struct chm_kv_publish {
    int fd; /* -1: nothing */
    char path[96];
    struct chm_store_page *page; /* and the namespaces behind it */
    uint64_t next_ns;
};

/* Pages of one kind that are written in turn to two slots (pages.c). */
struct chm_kv_table {
    uint32_t kind, pages;
    uint64_t off; /* from base */
    bool twice;   /* what is new goes into both slots, one after the other */
    uint64_t *dirty, *writing, *slot, *again; /* bitmaps */
};

struct chm_kv_check {
    uint8_t state;
    bool wanted;
    bool pages_good; /* the flush that was waited for has landed */
    bool closing;    /* the superblock says clean */
    uint32_t table, cursor;
    uint64_t round;      /* of this one */
    uint64_t last_round; /* highest ever begun; the superblock has the last that ended */
    uint64_t covers;     /* journal pages up to here are in the pages */
    uint64_t ticket;     /* number of the flush to wait for */
};

struct chm_store {
    struct chm_dev *dev;
    struct chm_store_options opt;
    const struct chm_kv_evict *evict;
    pthread_mutex_t lock;
    struct chm_kv_super super;
    uint64_t base, unit, data; /* data: device address of the data space */
    uint64_t piece_max;        /* of a write */
    uint64_t stage_max;        /* of a read through the window */
    uint64_t align;            /* of buffers that are read into directly */

    struct chm_kv_entry *entries;
    uint32_t *links;
    uint32_t max, touched, free_head, free_count;
    uint32_t *slots; /* directory */
    uint64_t slot_count;
    uint32_t number_bits;
    struct chm_extents extents;
    uint64_t runs;        /* extents in use */
    uint64_t limbo_bytes; /* of removed entries, until they are settled */
    uint32_t leaving;     /* and how many these are */
    struct chm_kv_split *splits;
    uint32_t split_count;
    struct chm_kv_space *spaces;
    uint32_t space_count;
    uint32_t names_logged; /* namespaces before this one are recorded */
    uint32_t stamp;
    uint32_t orphan_cursor; /* next entry of the search for orphans; CHM_KV_NONE: not searching */
    bool orphan_again;
    uint64_t evict_want;

    struct chm_kv_table table[2];
    struct chm_kv_journal journal;
    struct chm_kv_sync sync;
    struct chm_kv_check check;
    bool degraded;

    struct chm_kv_job *jobs;
    struct chm_link free_jobs, puts, reads, syncs, ended;
    struct chm_kv_task *tasks;
    struct chm_link free_tasks, active;
    uint32_t free_task_count;
    struct chm_kv_xfer *xfers;
    uint32_t free_xfer;
    struct chm_kv_lease *leases;
    uint32_t free_lease;
    uint8_t *heads;                              /* KV_HEADS buffers */
    uint64_t head_stride;                        /* bytes of one */
    uint64_t heads_used;                         /* bitmap */
    uint64_t heads_left;                         /* those whose task gave up while they were read */
    struct chm_kv_cancelled head_read[KV_HEADS]; /* the reads of those left */
    struct chm_kv_putter put;
    struct chm_store_slow slow[CHM_STORE_SLOW_MAX];
    uint32_t slow_count;
    struct chm_kv_publish publish;
    uint64_t opened_ns;
    uint64_t life_bytes, life_open_ns; /* before this opening */
    int event_fd;

    pthread_t thread;
    bool threaded;
    _Atomic bool stopping, ending;
    _Atomic uint32_t waiters; /* callers that wait for what the worker does */
    bool crashed;             /* close without writing anything (tests) */
    struct {
        void *base;
        uint64_t bytes;
    } maps[KV_MAPS];
    struct chm_store_info info;
    struct chm_store_stats stats;
};

static inline struct chm_kv_entry *chm_kv_at(const struct chm_store *s, uint32_t number)
{
    return &s->entries[number];
}

static inline uint32_t chm_kv_state_of(const struct chm_kv_entry *e)
{
    return e->state & KV_STATE_MASK;
}

static inline bool chm_kv_visible(const struct chm_kv_entry *e)
{
    uint32_t state = chm_kv_state_of(e);

    return state >= KV_FRESH && state <= KV_LIVE;
}

/* ---- directory.c */
uint64_t chm_kv_directory_slots(uint32_t max_objects);
/* Entry number of a key, in whatever state, or CHM_KV_NONE. */
uint32_t chm_kv_find(const struct chm_store *s, uint32_t ns, const struct chm_key *key);
/* The same for n keys, n <= KV_STEP_KEYS. */
void chm_kv_find_many(const struct chm_store *s, uint32_t ns, const struct chm_key *keys,
                      uint32_t n, uint32_t *numbers);
void chm_kv_directory_add(struct chm_store *s, uint32_t number);
void chm_kv_directory_remove(struct chm_store *s, uint32_t number);

/* ---- entries.c */
uint32_t chm_kv_entry_take(struct chm_store *s); /* CHM_KV_NONE: max_objects */
void chm_kv_list_init(struct chm_kv_list *l);
void chm_kv_list_push(struct chm_store *s, struct chm_kv_list *l, uint32_t number);
uint32_t chm_kv_list_pop(struct chm_store *s, struct chm_kv_list *l);
void chm_kv_list_join(struct chm_store *s, struct chm_kv_list *to, struct chm_kv_list *from);
/* A PUTTING entry becomes visible, or is forgotten. */
void chm_kv_entry_publish(struct chm_store *s, uint32_t number);
void chm_kv_entry_abort(struct chm_store *s, uint32_t number);
/* A visible entry is no longer to be found. */
void chm_kv_entry_remove(struct chm_store *s, uint32_t number);
/* Remove it if it still is visible: lost, damaged, late. */
void chm_kv_entry_drop(struct chm_store *s, uint32_t number);
/* Nothing on the drive speaks of it any more. */
void chm_kv_entry_retire(struct chm_store *s, uint32_t number);
void chm_kv_pin(struct chm_store *s, uint32_t number);
void chm_kv_unpin(struct chm_store *s, uint32_t number);
/* Make parent the parent of number, if it has none that counts and no cycle comes of it. */
void chm_kv_adopt(struct chm_store *s, uint32_t number, uint32_t parent);
/* Look for descendants of lost entries, a slice at a time. True: there is more to do. */
bool chm_kv_orphans_step(struct chm_store *s);

/* ---- place.c */
/* What ties the bytes of an object to its key. */
uint64_t chm_kv_seed(const struct chm_kv_entry *e);
/* Bytes in front of the payload of an object, if it has a header. */
uint64_t chm_kv_head_bytes(const struct chm_store *s, uint64_t len);
/* Space of an object that lies in one run, and of one that there is. */
uint64_t chm_kv_whole_bytes(const struct chm_store *s, uint64_t len);
uint64_t chm_kv_space_bytes(const struct chm_store *s, const struct chm_kv_entry *e);
/* Space for an entry whose len is set: sets place. 0, -ENOSPC. */
int chm_kv_place_take(struct chm_store *s, uint32_t number);
void chm_kv_place_give(struct chm_store *s, uint32_t number);
void chm_kv_place_where(const struct chm_store *s, uint32_t number, struct chm_kv_where *w);
/* Recovery: this is where an entry lies; false if that is not free, or makes no sense. */
bool chm_kv_place_claim(struct chm_store *s, uint32_t number, const struct chm_kv_object_head *h);
int chm_kv_place_open(struct chm_store *s);
void chm_kv_place_close(struct chm_store *s);

/* ---- evict.c */
const struct chm_kv_evict *chm_kv_evict_of(const char *name);
void chm_kv_recent_push(struct chm_store *s, uint32_t number, uint32_t before, bool oldest);
void chm_kv_recent_remove(struct chm_store *s, uint32_t number);
/* Remove victims until `bytes` were, or none is left: of one namespace, or CHM_KV_NONE: of all.
 * Returns the bytes. */
uint64_t chm_kv_evict_bytes(struct chm_store *s, uint32_t ns, uint64_t bytes, uint64_t *objects);
/* One object, whatever its size. */
bool chm_kv_evict_one(struct chm_store *s, uint32_t ns);
/* Keep free what is to be kept free. */
void chm_kv_evict_ahead(struct chm_store *s);

/* ---- device.c: the device as the store uses it */
/* One page of metadata to an offset from base. 0, -EAGAIN: no room now; or an error. The caller
 * counts it in metadata_bytes, with the lock: this may be called without. */
int chm_kv_write_page(struct chm_store *s, uint64_t off, const void *page);
/* The same, waiting for room, and counted. For open, format and close. */
int chm_kv_write_page_wait(struct chm_store *s, uint64_t off, const void *page);
int chm_kv_read(struct chm_store *s, uint64_t addr, void *buf, uint64_t len);
void chm_kv_page_seal(const struct chm_store *s, struct chm_kv_page *p, uint32_t kind,
                      uint32_t number);
bool chm_kv_page_is_good(const struct chm_store *s, const struct chm_kv_page *p, uint32_t kind);
/* A store of zeros; free() it. NULL: no memory. */
struct chm_store *chm_kv_new(struct chm_dev *dev);
/* Address space that takes memory only as far as it is touched; freed with the store. */
void *chm_kv_map(struct chm_store *s, uint64_t bytes);
void chm_kv_unmap_all(struct chm_store *s);

/* ---- image.c: entries and records as they are on the device, each with a sum of its own */
/* The durable state of an entry, or, if `there` is false, that it is none. */
void chm_kv_image(const struct chm_store *s, uint32_t number, bool there, uint64_t round,
                  struct chm_kv_entry *out);
bool chm_kv_image_is_good(const struct chm_store *s, uint32_t number,
                          const struct chm_kv_entry *image);
/* Sum of a record other than a put, in journal page seq. */
uint64_t chm_kv_record_sum(const struct chm_store *s, uint32_t number, uint64_t seq,
                           const void *body, uint64_t bytes);
void chm_kv_name_seal(const struct chm_store *s, uint32_t number, struct chm_kv_name *name);
bool chm_kv_name_is_good(const struct chm_store *s, uint32_t number,
                         const struct chm_kv_name *name);

/* ---- kv_format.c */
/* Its sizes and offsets fit together. */
bool chm_kv_layout_is_sound(const struct chm_kv_super *p);

/* ---- super.c */
int chm_kv_super_read(struct chm_store *s, struct chm_error *err);
/* Seal it as the next generation, and write it: as chm_kv_write_page. */
int chm_kv_super_write(struct chm_store *s, bool wait);
void chm_kv_super_seal(struct chm_kv_super *p);

/* ---- journal.c */
int chm_kv_journal_open(struct chm_store *s);
/* Free pages of the ring. */
uint64_t chm_kv_journal_room(const struct chm_store *s);
/* Add a record to the page being filled. False: it is full, write it first. */
bool chm_kv_journal_add(struct chm_store *s, uint16_t kind, uint32_t number, const void *body,
                        uint16_t bytes);
/* Write the page being filled, if it has records; and after a failed flush the older ones. 0,
 * -EAGAIN, -ENOSPC: no room in the ring. */
int chm_kv_journal_write(struct chm_store *s);
void chm_kv_journal_failed(struct chm_store *s);

/* ---- pages.c and check.c */
int chm_kv_tables_open(struct chm_store *s);
void chm_kv_table_mark(struct chm_store *s, uint32_t table, uint32_t number);
void chm_kv_table_build(const struct chm_store *s, uint32_t table, uint32_t number,
                        struct chm_kv_page *p);
uint64_t chm_kv_table_off(const struct chm_store *s, uint32_t table, uint32_t number,
                          uint32_t slot);
bool chm_kv_check_step(struct chm_store *s);
/* A flush has landed. */
void chm_kv_check_flushed(struct chm_store *s, uint64_t flush, bool good);
bool chm_kv_check_waits(const struct chm_store *s);

/* ---- sync.c */
bool chm_kv_sync_step(struct chm_store *s);
bool chm_kv_sync_idle(const struct chm_store *s);
/* The number of the flush that covers everything admitted so far, now wanted. */
uint64_t chm_kv_sync_want(struct chm_store *s);
uint64_t chm_kv_sync_next_ns(const struct chm_store *s);

/* ---- jobs.c */
int chm_kv_jobs_open(struct chm_store *s);
/* A key has its status. The job may end. */
void chm_kv_key_end(struct chm_store *s, struct chm_kv_job *j, uint32_t index, int32_t status);
void chm_kv_job_end(struct chm_store *s, struct chm_kv_job *j);
bool chm_kv_jobs_step(struct chm_store *s);
uint64_t chm_kv_jobs_next_ns(const struct chm_store *s);

/* ---- slow.c */
/* A job has ended: its latencies, and whether it is among the slowest. */
void chm_kv_slow_note(struct chm_store *s, const struct chm_kv_job *j);

/* ---- publish.c */
/* Begin to publish, if that is possible here. */
void chm_kv_publish_open(struct chm_store *s);
/* Renew what is published, if it is time. Without the lock. */
void chm_kv_publish_step(struct chm_store *s);
void chm_kv_publish_close(struct chm_store *s);
/* Name of the file in one of the directories, or NULL if there is no such directory. */
const char *chm_kv_publish_path(uint32_t directory, const uint8_t device_id[16], uint64_t base,
                                char *out, size_t len);

/* ---- put.c */
void chm_kv_put_submit(struct chm_store *s, struct chm_kv_job *j);
/* End it now, for the reason in j->stop. */
void chm_kv_put_stop(struct chm_store *s, struct chm_kv_job *j);
bool chm_kv_put_step(struct chm_store *s);
uint64_t chm_kv_put_next_ns(const struct chm_store *s);
/* ---- get.c */
void chm_kv_get_submit(struct chm_store *s, struct chm_kv_job *j);
bool chm_kv_get_step(struct chm_store *s);
/* No header buffer is written to by a read whose task gave up. */
bool chm_kv_heads_gone(const struct chm_store *s, uint64_t arg);

/* ---- worker.c */
/* Do what can be done now. */
bool chm_kv_pump(struct chm_store *s);
uint64_t chm_kv_next_ns(const struct chm_store *s);
int chm_kv_worker_start(struct chm_store *s);
void chm_kv_worker_stop(struct chm_store *s);
/* Let the worker look, or in a stepped device do the work. */
void chm_kv_kick(struct chm_store *s);
/* Wait until cond(s) or the deadline, stepping if need be. 0, -ETIMEDOUT, -EINTR. */
int chm_kv_wait(struct chm_store *s, bool (*cond)(const struct chm_store *s, uint64_t arg),
                uint64_t arg, uint64_t deadline_ns);

/* ---- recover.c */
int chm_kv_recover(struct chm_store *s, struct chm_error *err);

#endif

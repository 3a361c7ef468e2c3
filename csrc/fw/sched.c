/* SPDX-License-Identifier: Apache-2.0 */
/* sched.c - see sched.h. */
#include "fw/sched.h"

#include <errno.h>

#include "fw/device.h"
#include "util/util.h"

enum {
    BATCH_MAX = 64,      /* I/Os per submit */
    RETRY_MAX = 16,      /* "try again" answers of a medium to one I/O */
    FLUSH_RETRY_MAX = 3, /* errors of one flush unit before its bytes count as lost */
};

bool chm_sched_reads_wait(const struct chm_sched *s)
{
    return s->reads > 0 || !chm_list_empty(&s->demand) || !chm_list_empty(&s->stage) ||
           !chm_list_empty(&s->lines);
}

static void count_arrival(struct chm_fw *fw)
{
    chm_hist_add(&fw->stats.flush_at_read, fw->sched.flushes);
    fw->stats.flush_inflight_at_read_max =
        chm_max(fw->stats.flush_inflight_at_read_max, fw->sched.flushes);
}

void chm_sched_queue(struct chm_fw *fw, struct chm_fetch *f)
{
    struct chm_sched *s = &fw->sched;

    count_arrival(fw);
    chm_list_push(f->demand ? &s->demand : &s->stage, &f->queue);
}

void chm_sched_queue_move(struct chm_fw *fw, struct chm_move *m)
{
    if (m->phase == MOVE_FILL) {
        count_arrival(fw);
    }
    chm_list_push(&fw->sched.lines, &m->link);
}

static struct chm_fio *fio_new(struct chm_sched *s)
{
    struct chm_link *link = chm_list_first(&s->free);
    struct chm_fio *fio;

    if (!link) {
        return NULL;
    }
    fio = CHM_CONTAINER(link, struct chm_fio, link);
    chm_list_remove(link);
    fio->io = (struct chm_io){.owner = fio};
    fio->fetch = NULL;
    fio->exts = NULL;
    fio->move = NULL;
    fio->bounce = CHM_RUNS_NONE;
    fio->retries = 0;
    return fio;
}

static void fio_free(struct chm_sched *s, struct chm_fio *fio)
{
    chm_list_insert_before(s->free.next, &fio->link);
}

/* ---- building I/Os */

/* Bounce pages for a read of `want` bytes; shrinks *want to what there is, at least a granule. */
static bool fio_bounce(struct chm_fw *fw, struct chm_fio *fio, uint64_t *want)
{
    uint64_t n = chm_max(1, chm_min(*want, fw->bounce.units * fw->granule / 2) / fw->granule);
    uint64_t at = chm_runs_take(&fw->bounce, n, 0);

    if (at == CHM_RUNS_NONE) {
        return false;
    }
    *want = n * fw->granule;
    fio->bounce = fw->bounce_base + at * fw->granule;
    fio->bounce_bytes = *want;
    return true;
}

static void fio_bounce_free(struct chm_fw *fw, struct chm_fio *fio)
{
    if (fio->bounce != CHM_RUNS_NONE) {
        chm_runs_give(&fw->bounce, (fio->bounce - fw->bounce_base) / fw->granule,
                      fio->bounce_bytes / fw->granule);
        fio->bounce = CHM_RUNS_NONE;
    }
}

/* The next read I/O of f. False: no bounce page is free, so it has to wait. */
static bool build_read(struct chm_fw *fw, struct chm_fio *fio, struct chm_fetch *f)
{
    uint64_t max = fw->opts.read_unit, len;
    struct chm_spot spot;

    if (!f->dest && !fio_bounce(fw, fio, &max)) {
        return false;
    }
    len = chm_fetch_take(fw, f, max, &fio->addr);
    spot = chm_map_spot(&fw->map, fio->addr, len);
    CHM_ASSERT(spot.len == len);
    fio->what = FIO_FETCH;
    fio->fetch = f;
    fio->io.kind = CHM_IO_READ;
    fio->io.member = (uint16_t)spot.member;
    fio->io.off = spot.off;
    fio->io.len = (uint32_t)len;
    fio->io.buf = f->dest ? f->dest + (fio->addr - f->addr) : fw->memory + fio->bounce;
    fio->io.region = f->dest ? f->region : 0;
    fio->unit_bytes = (uint32_t)len;
    chm_list_push(&f->inflight, &fio->link);
    f->ios++;
    fw->sched.reads++;
    return true;
}

static struct chm_fetch *sched_first(struct chm_link *queue)
{
    struct chm_link *link = chm_list_first(queue);

    return link ? CHM_CONTAINER(link, struct chm_fetch, queue) : NULL;
}

static struct chm_fio *next_read(struct chm_fw *fw, uint32_t depth)
{
    struct chm_sched *s = &fw->sched;
    struct chm_link *queues[] = {&s->demand, &s->stage};
    struct chm_link *move = chm_list_first(&s->lines);
    struct chm_fio *fio;

    if (s->reads >= depth || (fio = fio_new(s)) == NULL) {
        return NULL;
    }
    if (move) {
        chm_move_take(fw, fio, CHM_CONTAINER(move, struct chm_move, link));
        s->reads++;
        return fio;
    }
    for (size_t i = 0; i < CHM_COUNT(queues); i++) {
        struct chm_fetch *f = sched_first(queues[i]);

        if (f && build_read(fw, fio, f)) {
            return fio;
        }
    }
    fio_free(s, fio);
    return NULL;
}

/* ---- flush credit */

static bool flush_asked(const struct chm_fw *fw)
{
    if (fw->cache.replace) {
        return chm_cache_wanted(fw) > chm_cache_settled(fw);
    }
    return fw->closing || chm_durable_wanted(&fw->durable) > chm_wbuf_settled(&fw->wbuf);
}

static void update_pressing(struct chm_fw *fw)
{
    struct chm_wbuf *b = &fw->wbuf;
    uint64_t used = b->runs.used * b->granule * 100;
    uint64_t oldest = chm_wbuf_oldest_ns(b);
    bool asked = flush_asked(fw);

    fw->sched.asked = asked;
    /* Lines are written only when somebody asks. */
    if (fw->cache.replace) {
        fw->sched.pressing = asked;
        return;
    }
    if (used >= b->bytes * fw->opts.flush_high_percent) {
        fw->sched.pressing = true;
    } else if (used <= b->bytes * fw->opts.flush_low_percent) {
        fw->sched.pressing = false;
    }
    if (asked || (oldest != UINT64_MAX && fw->now_ns >= oldest &&
                  fw->now_ns - oldest >= fw->opts.flush_age_ns)) {
        fw->sched.pressing = true;
    }
    if (chm_list_empty(&b->pending)) {
        fw->sched.pressing = false;
    }
}

static struct chm_flush_view flush_view(const struct chm_fw *fw)
{
    const struct chm_sched *s = &fw->sched;

    return (struct chm_flush_view){
        .opts = &fw->opts,
        .now_ns = fw->now_ns,
        .last_read_ns = s->last_read_ns,
        .oldest_ns = chm_wbuf_oldest_ns(&fw->wbuf),
        .buffer_bytes = fw->wbuf.bytes,
        .filled = fw->wbuf.runs.used * fw->wbuf.granule,
        .reads = s->reads,
        .flushes = s->flushes,
        .reads_wait = chm_sched_reads_wait(s),
        .pressing = s->pressing,
        .asked = s->asked,
        .turn = s->turn,
    };
}

int chm_sched_admit(struct chm_fw *fw, uint64_t addr, uint64_t len)
{
    struct chm_flush_view v;
    int rc;

    if (fw->flush_ops->admit == chm_flush_admit_all) {
        return 0;
    }
    v = flush_view(fw);
    rc = fw->flush_ops->admit(&v, addr, len);
    CHM_ASSERT(rc <= 0);
    return rc;
}

static struct chm_fio *next_flush(struct chm_fw *fw, uint32_t depth)
{
    struct chm_sched *s = &fw->sched;
    struct chm_fio *fio;

    if (s->flushes >= depth || (fio = fio_new(s)) == NULL) {
        return NULL;
    }
    fio->what = FIO_FLUSH;
    if (!fw->policy->cache->take(fw, fio)) {
        fio_free(s, fio);
        return NULL;
    }
    s->flushes++;
    fw->stats.flush_units++;
    return fio;
}

/* The policy says how many of each, and whose turn it is when both may go. */
static struct chm_fio *next_io(struct chm_fw *fw, struct chm_flush_view *v)
{
    struct chm_sched *s = &fw->sched;
    struct chm_fio *fio = NULL;
    uint32_t reads, flushes;

    v->reads = s->reads;
    v->flushes = s->flushes;
    v->turn = s->turn;
    reads = fw->flush_ops->reads(v);
    flushes = fw->flush_ops->flushes(v);
    if (s->reads >= reads && s->flushes >= flushes) {
        return NULL;
    }
    s->turn = !s->turn;
    if (fw->flush_ops->flush_first(v)) {
        fio = next_flush(fw, flushes);
    }
    fio = fio ? fio : next_read(fw, reads);
    return fio ? fio : next_flush(fw, flushes);
}

/* ---- submitting */

/* Offer the backlog to the medium, in order. */
static void submit_backlog(struct chm_fw *fw)
{
    struct chm_io *ios[BATCH_MAX];
    unsigned n, taken;

    do {
        struct chm_link *link = chm_list_first(&fw->sched.backlog);

        for (n = 0; link && n < BATCH_MAX; n++) {
            ios[n] = &CHM_CONTAINER(link, struct chm_fio, back)->io;
            link = chm_list_next(&fw->sched.backlog, link);
        }
        taken = n ? chm_medium_submit(fw->medium, ios, n) : 0;
        for (unsigned i = 0; i < taken; i++) {
            chm_list_remove(fw->sched.backlog.next);
        }
    } while (n && taken == n);
}

void chm_sched_run(struct chm_fw *fw)
{
    struct chm_sched *s = &fw->sched;
    struct chm_flush_view view;
    struct chm_fio *fio;

    if (chm_sched_reads_wait(s)) {
        s->last_read_ns = fw->now_ns;
    }
    update_pressing(fw);
    view = flush_view(fw);
    while ((fio = next_io(fw, &view)) != NULL) {
        chm_list_push(&s->backlog, &fio->back);
    }
    submit_backlog(fw);
}

bool chm_sched_barrier(struct chm_fw *fw, uint32_t member)
{
    struct chm_fio *fio = fio_new(&fw->sched);

    if (!fio) {
        return false;
    }
    fio->what = FIO_BARRIER;
    fio->io.kind = CHM_IO_BARRIER;
    fio->io.member = (uint16_t)member;
    fio->io.region = CHM_NO_REGION;
    fw->sched.others++;
    chm_list_push(&fw->sched.backlog, &fio->back);
    return true;
}

/* ---- completions */

static void resubmit(struct chm_fw *fw, struct chm_fio *fio)
{
    fw->stats.resubmits++;
    chm_list_push(&fw->sched.backlog, &fio->back);
}

static bool try_again(int32_t res)
{
    return res == -EAGAIN || res == -EINTR || res == -EBUSY;
}

/* True: the I/O is not over, it has gone to the backlog again. Whatever a medium answers, this
 * ends: a retry is counted, a continued short I/O is shorter by at least a block. */
static bool carry_on(struct chm_fw *fw, struct chm_fio *fio)
{
    struct chm_io *io = &fio->io;
    uint32_t moved;

    if (io->kind == CHM_IO_BARRIER || io->kind == CHM_IO_TRIM || io->res < 0) {
        if (!try_again(io->res) || fio->retries >= RETRY_MAX) {
            return false;
        }
        fio->retries++;
        resubmit(fw, fio);
        return true;
    }
    if ((uint32_t)io->res >= io->len) {
        return false;
    }
    fw->stats.short_ios++;
    moved = (uint32_t)io->res / fw->medium->caps.block_bytes * fw->medium->caps.block_bytes;
    if (moved == 0) {
        io->res = -EIO;
        return false;
    }
    io->off += moved;
    io->buf = (uint8_t *)io->buf + moved;
    io->len -= moved;
    fio->addr += moved;
    resubmit(fw, fio);
    return true;
}

static void count_read(struct chm_fw *fw, const struct chm_fio *fio)
{
    fw->sched.last_read_ns = fw->now_ns;
    fw->stats.read_ios++;
    if (fio->io.res >= 0) {
        fw->stats.read_bytes += fio->unit_bytes;
    }
    chm_hist_add(&fw->stats.read_io_ns, fio->io.done_ns - fio->io.submit_ns);
}

static void count_write(struct chm_fw *fw, const struct chm_fio *fio)
{
    if (fio->io.kind == CHM_IO_TRIM) {
        fw->stats.trim_ios++;
    } else {
        fw->stats.write_ios++;
        fw->stats.write_bytes += fio->unit_bytes;
        chm_hist_add(&fw->stats.write_io_ns, fio->io.done_ns - fio->io.submit_ns);
    }
}

static void read_landed(struct chm_fw *fw, struct chm_fio *fio)
{
    struct chm_fetch *f = fio->fetch;

    fw->sched.reads--;
    count_read(fw, fio);
    chm_list_remove(&fio->link);
    chm_fetch_landed(fw, f, fio);
    fio_bounce_free(fw, fio);
}

/* True: tried once more. A unit is written whole again, from its first byte. */
static bool flush_retry(struct chm_fw *fw, struct chm_fio *fio)
{
    uint32_t done = fio->unit_bytes - fio->io.len;

    fw->stats.flush_errors++;
    if (fio->io.kind == CHM_IO_TRIM || fio->io.res == -ENODEV || fio->retries >= FLUSH_RETRY_MAX) {
        return false;
    }
    fio->retries++;
    fio->io.off -= done;
    fio->io.buf = (uint8_t *)fio->io.buf - done;
    fio->io.len += done;
    fio->addr -= done;
    fw->stats.flush_retries++;
    resubmit(fw, fio);
    return true;
}

static void flush_landed(struct chm_fw *fw, struct chm_fio *fio)
{
    if (fio->io.res < 0 && flush_retry(fw, fio)) {
        return;
    }
    fw->sched.flushes--;
    count_write(fw, fio);
    chm_wbuf_landed(fw, fio, fio->io.res < 0 ? fio->io.res : 0);
    fio_free(&fw->sched, fio);
}

/* Of what a miss moves counts as a read what it waits for, the write-back too. */
static void move_landed(struct chm_fw *fw, struct chm_fio *fio)
{
    bool flush = fio->move->phase == MOVE_CLEAN;

    if (fio->io.kind != CHM_IO_READ && fio->io.res < 0 && flush_retry(fw, fio)) {
        return;
    }
    fw->sched.flushes -= flush;
    fw->sched.reads -= !flush;
    if (fio->io.kind == CHM_IO_READ) {
        count_read(fw, fio);
    } else {
        count_write(fw, fio);
    }
    chm_cache_landed(fw, fio);
    fio_free(&fw->sched, fio);
}

void chm_sched_landed(struct chm_fw *fw, struct chm_fio *fio)
{
    if (fio->io.res < 0) {
        fw->stats.io_errors++;
    }
    if (carry_on(fw, fio)) {
        return;
    }
    switch (fio->what) {
    case FIO_FETCH:
        read_landed(fw, fio);
        fio_free(&fw->sched, fio);
        break;
    case FIO_FLUSH:
        flush_landed(fw, fio);
        break;
    case FIO_MOVE:
        move_landed(fw, fio);
        break;
    default:
        fw->sched.others--;
        chm_durable_landed(fw, fio->io.res);
        fio_free(&fw->sched, fio);
    }
}

uint64_t chm_sched_next_ns(const struct chm_fw *fw)
{
    struct chm_flush_view v;

    if (fw->cache.replace || fw->sched.flushes > 0 || chm_wbuf_oldest_ns(&fw->wbuf) == UINT64_MAX) {
        return UINT64_MAX;
    }
    v = flush_view(fw);
    return fw->flush_ops->next_ns(&v);
}

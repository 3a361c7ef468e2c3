/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache_moves.c - bytes on their way between lines and the drive. States of a move: cache.h.
 *
 * A move is one I/O, or several where the line is longer than the drive takes at once or crosses
 * from one member to the next; it has ended when all of them have. After an error no more are
 * issued. A line that cannot be written back is lost, as an extent of the write buffer would be.
 */
#include <string.h>

#include "fw/device.h"
#include "util/util.h"

/* ---- beginning */

bool chm_cache_may_miss(const struct chm_cache *c)
{
    return c->fills < c->fills_max;
}

/* Commits up to `newest` may be in a line that is dirty now. */
static uint64_t newest_in(const struct chm_line *line)
{
    return line->stamp + line->span;
}

static void move_phase(struct chm_move *m, uint8_t phase, uint64_t begin, uint64_t end)
{
    m->phase = phase;
    m->begin = m->at = begin;
    m->end = end;
    m->first_ns = UINT64_MAX;
    m->last_ns = 0;
    m->err = 0;
}

static struct chm_move *move_new(struct chm_cache *c, struct chm_line *line)
{
    struct chm_link *link = chm_list_first(&c->moves_free);
    struct chm_move *m;

    CHM_ASSERT(link);
    m = CHM_CONTAINER(link, struct chm_move, link);
    CHM_ASSERT(m->phase == MOVE_FREE && m->ios == 0);
    chm_list_remove(link);
    m->line = line;
    m->job = NULL;
    m->fetch = false;
    return m;
}

static void move_free(struct chm_cache *c, struct chm_move *m)
{
    CHM_ASSERT(m->phase != MOVE_FREE && m->ios == 0);
    m->phase = MOVE_FREE;
    chm_list_insert_before(c->moves_free.next, &m->link);
    c->changed = true;
}

static void fill_phase(struct chm_fw *fw, struct chm_move *m)
{
    uint64_t number = m->line->number;

    if (fw->opts.poison && fw->cache.copies) {
        memset(chm_line_memory(fw, m->line), 0xA5, fw->cache.line_bytes);
    }
    move_phase(m, MOVE_FILL, number << fw->cache.shift, chm_cache_end_of(fw, number));
    chm_sched_queue_move(fw, m);
}

void chm_move_fill(struct chm_fw *fw, struct chm_line *line)
{
    fw->cache.fills++;
    fill_phase(fw, move_new(&fw->cache, line));
}

void chm_move_evict(struct chm_fw *fw, struct chm_line *line, uint64_t victim, bool fetch)
{
    struct chm_cache *c = &fw->cache;
    struct chm_move *m = move_new(c, line);

    c->fills++;
    m->victim = victim;
    m->fetch = fetch;
    m->newest = newest_in(line);
    chm_list_push(&c->evicting, &m->evicting);
    move_phase(m, MOVE_EVICT, victim << c->shift, chm_cache_end_of(fw, victim));
    chm_sched_queue_move(fw, m);
}

void chm_move_trim(struct chm_fw *fw, struct chm_job *job)
{
    struct chm_move *m = move_new(&fw->cache, NULL);

    fw->cache.trims++;
    m->job = job;
    move_phase(m, MOVE_TRIM, job->addr, job->end);
    chm_sched_queue_move(fw, m);
}

bool chm_cache_leaving(struct chm_cache *c, uint64_t number)
{
    for (struct chm_link *l = chm_list_first(&c->evicting); l; l = chm_list_next(&c->evicting, l)) {
        if (CHM_CONTAINER(l, struct chm_move, evicting)->victim == number) {
            return true;
        }
    }
    return false;
}

/* ---- issuing */

static uint8_t io_kind(const struct chm_move *m)
{
    return m->phase == MOVE_FILL ? CHM_IO_READ : m->line ? CHM_IO_WRITE : CHM_IO_TRIM;
}

void chm_move_take(struct chm_fw *fw, struct chm_fio *fio, struct chm_move *m)
{
    uint64_t max = fw->medium->caps.transfer_max;
    struct chm_spot spot = chm_map_spot(&fw->map, m->at, chm_min(m->end - m->at, max));

    fio->what = FIO_MOVE;
    fio->move = m;
    fio->addr = m->at;
    fio->io.kind = io_kind(m);
    fio->io.member = (uint16_t)spot.member;
    fio->io.off = spot.off;
    fio->io.len = (uint32_t)spot.len;
    fio->io.buf = m->line ? chm_line_memory(fw, m->line) + (m->at - m->begin) : NULL;
    fio->io.region = 0;
    fio->unit_bytes = fio->io.len;
    m->at += spot.len;
    m->ios++;
    if (m->at == m->end) {
        chm_list_remove(&m->link);
    }
}

/* The oldest line that is dirty and wanted on the drive; lines that are on their way are passed
 * over, of which there are no more than moves. */
static bool clean_begin(struct chm_fw *fw)
{
    struct chm_cache *c = &fw->cache;
    uint64_t wanted = chm_cache_wanted(fw);
    struct chm_link *link = chm_list_first(&c->dirty);
    struct chm_line *line = NULL;

    if (c->trim_waits || c->cleans + c->fills_max + 1 >= c->moves_max) {
        return false;
    }
    for (; link; link = chm_list_next(&c->dirty, link)) {
        line = CHM_CONTAINER(link, struct chm_line, dirty);
        if (line->stamp > wanted || line->state == LINE_DIRTY) {
            break;
        }
    }
    if (!link || line->stamp > wanted) {
        return false;
    }
    line->state = LINE_WRITING;
    c->cleans++;
    c->cleaning = move_new(c, line);
    c->cleaning->newest = newest_in(line);
    move_phase(c->cleaning, MOVE_CLEAN, chm_line_addr(c, line), chm_cache_end_of(fw, line->number));
    return true;
}

bool chm_cache_take(struct chm_fw *fw, struct chm_fio *fio)
{
    struct chm_cache *c = &fw->cache;
    struct chm_move *m;

    if (!c->cleaning && !clean_begin(fw)) {
        return false;
    }
    m = c->cleaning;
    chm_move_take(fw, fio, m);
    if (m->at == m->end) {
        c->cleaning = NULL;
    }
    return true;
}

/* ---- ending */

static uint64_t move_ns(const struct chm_move *m)
{
    return m->last_ns > m->first_ns ? m->last_ns - m->first_ns : 0;
}

/* The line's bytes as they were are on the drive, or lost. */
static void written_back(struct chm_fw *fw, struct chm_move *m)
{
    struct chm_line *line = m->line;

    if (m->err < 0) {
        chm_wbuf_lose(fw, m->begin, m->end, line->stamp, m->newest);
    } else {
        fw->stats.cache_writebacks++;
        fw->stats.flushed_bytes += m->end - m->begin;
    }
    fw->stats.cache_writeback_ns += move_ns(m);
    chm_line_clean(&fw->cache, line);
}

static void evict_ended(struct chm_fw *fw, struct chm_move *m)
{
    struct chm_line *line = m->line;

    written_back(fw, m);
    chm_list_remove(&m->evicting);
    if (m->fetch) {
        fill_phase(fw, m);
        return;
    }
    fw->cache.fills--;
    move_free(&fw->cache, m);
    chm_cache_serve_waiters(fw, line, 0);
}

static void fill_ended(struct chm_fw *fw, struct chm_move *m)
{
    struct chm_line *line = m->line;
    int32_t err = m->err;

    fw->stats.cache_fill_ns += move_ns(m);
    fw->cache.fills--;
    move_free(&fw->cache, m);
    chm_cache_serve_waiters(fw, line, err);
}

/* What waits for a line that was lost is served all the same: stores make it good where they
 * write, and reads are told of the rest. */
static void clean_ended(struct chm_fw *fw, struct chm_move *m)
{
    struct chm_line *line = m->line;
    bool lost = m->err < 0;

    written_back(fw, m);
    fw->cache.cleans--;
    move_free(&fw->cache, m);
    if (lost && line->waiters == 0) {
        chm_line_free(fw, line);
    } else {
        chm_cache_serve_waiters(fw, line, 0);
    }
}

static void trim_ended(struct chm_fw *fw, struct chm_move *m)
{
    struct chm_job *job = m->job;
    int32_t err = m->err;

    fw->cache.trims--;
    move_free(&fw->cache, m);
    chm_cache_trimmed(fw, job, err);
}

static void move_ended(struct chm_fw *fw, struct chm_move *m)
{
    switch (m->phase) {
    case MOVE_EVICT:
        evict_ended(fw, m);
        break;
    case MOVE_FILL:
        fill_ended(fw, m);
        break;
    case MOVE_CLEAN:
        clean_ended(fw, m);
        break;
    default:
        trim_ended(fw, m);
    }
}

/* After an error: what was not issued is not. */
static void move_stop(struct chm_cache *c, struct chm_move *m)
{
    m->at = m->end;
    chm_list_remove(&m->link);
    if (c->cleaning == m) {
        c->cleaning = NULL;
    }
}

void chm_cache_landed(struct chm_fw *fw, struct chm_fio *fio)
{
    struct chm_move *m = fio->move;

    m->ios--;
    m->first_ns = chm_min(m->first_ns, fio->io.submit_ns);
    m->last_ns = chm_max(m->last_ns, fio->io.done_ns);
    if (fio->io.res < 0 && m->err == 0) {
        m->err = fio->io.res;
        move_stop(&fw->cache, m);
    }
    if (m->ios == 0 && m->at == m->end) {
        move_ended(fw, m);
    }
}

/* ---- what is safe, and what is to be */

uint64_t chm_cache_settled(const struct chm_fw *fw)
{
    const struct chm_cache *c = &fw->cache;
    uint64_t settled = chm_wbuf_settled(&fw->wbuf);

    if (c->dirty.next != &c->dirty) {
        settled = chm_min(settled, CHM_CONTAINER(c->dirty.next, struct chm_line, dirty)->stamp - 1);
    }
    return settled;
}

uint64_t chm_cache_wanted(const struct chm_fw *fw)
{
    return fw->closing ? fw->wbuf.seq : chm_max(chm_durable_wanted(&fw->durable), fw->cache.target);
}

void chm_cache_aim(struct chm_fw *fw)
{
    struct chm_cache *c = &fw->cache;
    const struct chm_durable *d = &fw->durable;

    if (!c->replace || fw->opts.durability != CHM_DURABILITY_PERIODIC ||
        c->target > d->durable_seq || fw->wbuf.seq <= d->durable_seq) {
        return;
    }
    if (c->landing_bytes >= fw->opts.barrier_bytes ||
        fw->now_ns >= chm_sat_add(d->last_ns, fw->opts.barrier_interval_ns)) {
        c->target = fw->wbuf.seq;
        c->landing_bytes = 0;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_flash.c - the time model of one flash drive, as arithmetic on "busy until" numbers.
 *
 *     read:   command -> die -> channel -> SSD link
 *     write:  command -> SSD link -> cache (acknowledged) -> channel -> die (program)
 *
 * A read or write is worked out when it is submitted, from the numbers that those before it left.
 * Three rules keep that honest:
 *
 *  - Channel and link are reserved for the time at which the bytes could be there at the earliest,
 *    had nobody been in the way: then reservations are in order, and a read that waits for its die
 *    does not hold up the link for one that does not. The transfer ends at the later of what is
 *    reserved and what is possible. So the bytes that are through by any time never exceed rate
 *    times time.
 *  - Written bytes fill groups (a page of each plane), and full groups go to the dies in turn, as
 *    an FTL does whatever the addresses are. So group g is program g / dies of die g % dies, and
 *    when it is done follows from when the die is done with all it has.
 *  - Reads go first. A die remembers only the run of programs and erases that it has not done yet,
 *    [run_ns, end_ns), with no gap in it. A read waits for the end of the one it meets, or suspends
 *    it, and moves the rest of the run by what it took.
 */
#include "media/sim_flash.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PAGE_DEFAULT = 16 << 10,
    PAGE_MIN = 4096,
    PAGE_MAX = 1 << 20,
    BLOCK_PAGES_DEFAULT = 1024,
    BLOCK_PAGES_MAX = 1 << 16,
    PLANES_MAX = 16,
    CHANNELS_DEFAULT = 8,
    PAGE_READ_DEFAULT_NS = 60000,
    PROGRAM_DEFAULT_NS = 600000,
};

static const uint64_t CHANNEL_RATE_DEFAULT = 1600000000;
static const uint64_t TIME_MAX_NS = UINT64_C(10) * CHM_SECOND; /* of one operation */

/* ------------------------------------------------------------------ options */

void chm_flash_defaults(struct chm_sim_options *o)
{
    if (o->channels == 0) {
        o->channels = CHANNELS_DEFAULT;
        while (o->dies % o->channels != 0) {
            o->channels /= 2;
        }
    }
    o->planes = o->planes ? o->planes : 1;
    o->page_bytes = o->page_bytes ? o->page_bytes : PAGE_DEFAULT;
    o->block_pages = o->block_pages ? o->block_pages : BLOCK_PAGES_DEFAULT;
    o->page_read_ns[0] = o->page_read_ns[0] ? o->page_read_ns[0] : PAGE_READ_DEFAULT_NS;
    o->page_read_ns[1] = o->page_read_ns[1] ? o->page_read_ns[1] : o->page_read_ns[0];
    o->page_read_ns[2] = o->page_read_ns[2] ? o->page_read_ns[2] : o->page_read_ns[0];
    o->program_ns = o->program_ns ? o->program_ns : PROGRAM_DEFAULT_NS;
    o->channel_rate = o->channel_rate ? o->channel_rate : CHANNEL_RATE_DEFAULT;
}

static int bad(struct chm_error *err, const char *format, ...)
{
    va_list args;

    if (err) {
        va_start(args, format);
        (void)vsnprintf(err->text, sizeof(err->text), format, args);
        va_end(args);
        err->code = -EINVAL;
    }
    return -EINVAL;
}

static int check_times(const struct chm_sim_options *o, struct chm_error *err)
{
    const struct {
        const char *name;
        uint64_t ns;
    } times[] = {
        {"page_read_ns[0]", o->page_read_ns[0]},
        {"page_read_ns[1]", o->page_read_ns[1]},
        {"page_read_ns[2]", o->page_read_ns[2]},
        {"program_ns", o->program_ns},
        {"erase_ns", o->erase_ns},
        {"suspend_ns", o->suspend_ns},
        {"command_ns", o->command_ns},
    };

    for (size_t i = 0; i < CHM_COUNT(times); i++) {
        if (times[i].ns > TIME_MAX_NS) {
            return bad(err, "sim.%s is %llu ns: at most 10 s", times[i].name,
                       (unsigned long long)times[i].ns);
        }
    }
    return 0;
}

int chm_flash_check(const struct chm_sim_options *o, struct chm_error *err)
{
    uint64_t group = (uint64_t)o->planes * o->page_bytes;

    if (o->dies > CHM_FLASH_DIES_MAX || o->channels == 0 || o->dies % o->channels != 0) {
        return bad(err,
                   "sim.dies is %u and sim.channels %u: dies must be a multiple of channels, at "
                   "most %d",
                   o->dies, o->channels, CHM_FLASH_DIES_MAX);
    }
    if (o->planes > PLANES_MAX) {
        return bad(err, "sim.planes is %u: at most %d", o->planes, PLANES_MAX);
    }
    if (o->page_bytes < PAGE_MIN || o->page_bytes > PAGE_MAX ||
        (o->page_bytes & (o->page_bytes - 1)) != 0) {
        return bad(err, "sim.page_bytes is %u: it must be a power of two from 4 KiB to 1 MiB",
                   o->page_bytes);
    }
    if (o->block_pages > BLOCK_PAGES_MAX) {
        return bad(err, "sim.block_pages is %u: at most %d", o->block_pages, BLOCK_PAGES_MAX);
    }
    if (o->cache_bytes && o->cache_bytes < group) {
        return bad(err,
                   "sim.cache_bytes is %llu: it must hold what one program takes, planes x "
                   "page_bytes = %llu, or be 0",
                   (unsigned long long)o->cache_bytes, (unsigned long long)group);
    }
    return check_times(o, err);
}

/* ------------------------------------------------------------------ open, close */

static void set_times(struct chm_flash *f, const struct chm_sim_options *o)
{
    f->read_min_ns = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        f->read_ns[i] = o->page_read_ns[i];
        f->read_sum_ns += f->read_ns[i];
        f->read_min_ns = chm_min(f->read_min_ns, f->read_ns[i]);
        f->mixed = f->mixed || f->read_ns[i] != f->read_ns[0];
    }
    f->program_ns = o->program_ns;
    f->erase_ns = o->erase_ns;
    f->suspend_ns = o->suspend_ns;
    f->command_ns = o->command_ns;
}

int chm_flash_open(struct chm_flash *f, const struct chm_sim_options *o)
{
    uint64_t seed;

    CHM_ASSERT(o->dies && o->channels && o->planes && o->page_bytes && o->block_pages);
    *f = (struct chm_flash){
        .dies_n = o->dies,
        .channels_n = o->channels,
        .planes = o->planes,
        .block_pages = o->block_pages,
        .page_shift = (uint32_t)__builtin_ctz(o->page_bytes),
        .channel = {.rate = o->channel_rate},
        .link_in = {.rate = o->write_rate},
        .link_out = {.rate = o->read_rate},
        .group_bytes = (uint64_t)o->planes * o->page_bytes,
    };
    seed = o->seed;
    f->seed = chm_random(&seed); /* seeds that differ little give other kinds all the same */
    set_times(f, o);
    f->page_channel_ns = chm_port_cost(&f->channel, o->page_bytes);
    f->page_link_ns = chm_port_cost(&f->link_out, o->page_bytes);
    f->cache_groups = o->cache_bytes / f->group_bytes;
    f->dies = calloc(f->dies_n, sizeof(*f->dies));
    f->channels = calloc(f->channels_n, sizeof(*f->channels));
    if (!f->dies || !f->channels) {
        chm_flash_close(f);
        return -ENOMEM;
    }
    return 0;
}

void chm_flash_close(struct chm_flash *f)
{
    free(f->dies);
    free(f->channels);
    f->dies = NULL;
    f->channels = NULL;
}

void chm_flash_reset(struct chm_flash *f, uint64_t now_ns)
{
    for (uint32_t i = 0; i < f->dies_n; i++) {
        struct chm_flash_die *d = &f->dies[i];
        d->free_ns = chm_min(d->free_ns, now_ns);
        d->run_ns = chm_min(d->run_ns, now_ns);
        d->end_ns = chm_min(d->end_ns, now_ns);
    }
    for (uint32_t i = 0; i < f->channels_n; i++) {
        f->channels[i] = (struct chm_flash_channel){0};
    }
    f->link_in.busy_ns = f->link_out.busy_ns = now_ns;
    f->fill_bytes = 0;
}

/* ------------------------------------------------------------------ dies */

/*
 * What is left at at_ns of the program or erase that the die is in; at_ns is in its run. Counted
 * back from the end of the run, whose place in the cycle (block_pages programs, one erase) is
 * known.
 */
static uint64_t operation_left(const struct chm_flash *f, const struct chm_flash_die *d,
                               uint64_t at_ns)
{
    uint64_t left = d->end_ns - at_ns;
    uint64_t open_block = d->programs % f->block_pages * f->program_ns;
    uint64_t cycle = f->block_pages * f->program_ns + f->erase_ns;

    if (left > open_block) {
        left = (left - open_block - 1) % cycle + 1;
        if (left <= f->erase_ns) {
            return left;
        }
        left -= f->erase_ns;
    }
    return (left - 1) % f->program_ns + 1;
}

/* A read of took_ns that is at the die at at_ns and could begin at start_ns, when programs or
 * erases are not all done: when it begins. Moves what is left of them. */
static uint64_t read_before_programs(const struct chm_flash *f, struct chm_flash_die *d,
                                     uint64_t at_ns, uint64_t start_ns, uint64_t took_ns)
{
    uint64_t moved, left;

    if (start_ns < d->run_ns) { /* they have not begun */
        moved = start_ns + took_ns > d->run_ns ? start_ns + took_ns - d->run_ns : 0;
    } else if (d->free_ns > at_ns) { /* they are held up by other reads already */
        moved = took_ns;
    } else {
        left = operation_left(f, d, start_ns);
        if (f->suspend_ns && f->suspend_ns < left) {
            start_ns += f->suspend_ns;
            moved = f->suspend_ns + took_ns;
        } else {
            start_ns += left;
            moved = start_ns < d->end_ns ? took_ns : 0;
        }
    }
    d->run_ns += moved;
    d->end_ns += moved;
    return start_ns;
}

/* Have the die read for took_ns; returns when it has. */
static inline uint64_t die_read(const struct chm_flash *f, struct chm_flash_die *d, uint64_t at_ns,
                                uint64_t took_ns)
{
    uint64_t start = chm_max(at_ns, d->free_ns);

    if (__builtin_expect(d->end_ns > start, 0)) {
        start = read_before_programs(f, d, at_ns, start, took_ns);
    }
    d->free_ns = start + took_ns;
    return d->free_ns;
}

/* Have the next group programmed, whose `bytes` are in the cache at at_ns; returns when it is. */
static uint64_t program_group(struct chm_flash *f, uint64_t at_ns, uint64_t bytes)
{
    uint32_t die = (uint32_t)(f->groups++ % f->dies_n);
    struct chm_flash_die *d = &f->dies[die];
    struct chm_flash_channel *c = &f->channels[die % f->channels_n];
    uint64_t start, done;

    c->busy_ns = chm_max(c->busy_ns, at_ns) + chm_port_cost(&f->channel, bytes);
    start = chm_max(chm_max(c->busy_ns, d->free_ns), d->end_ns);
    if (start > d->end_ns) {
        d->run_ns = start;
    }
    done = start + f->program_ns;
    d->programs++;
    d->end_ns = done + (d->programs % f->block_pages == 0 ? f->erase_ns : 0);
    return done;
}

/* When group g is programmed: what its die does after it, taken off the end of its run. */
static uint64_t programmed_ns(const struct chm_flash *f, uint64_t g)
{
    const struct chm_flash_die *d = &f->dies[g % f->dies_n];
    uint64_t number = g / f->dies_n;
    uint64_t after = (d->programs - 1 - number) * f->program_ns +
                     (d->programs / f->block_pages - number / f->block_pages) * f->erase_ns;

    return d->end_ns > after ? d->end_ns - after : 0;
}

/* ------------------------------------------------------------------ reads */

/* The kinds of four pages in a row, 16 bits each, as shares of 2^16. Drawn from the number of the
 * four, and not a number modulo 3, so that no stride of addresses meets one kind only. */
static inline uint64_t kinds_draw(uint64_t seed, uint64_t page)
{
    uint64_t h = (page >> 2 ^ seed) * UINT64_C(0x9E3779B97F4A7C15);

    h = (h ^ h >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    return h ^ h >> 32;
}

/* Of what was drawn for its four and shifted to it: how long the die needs for a page. */
static inline uint64_t kind_ns(const uint64_t read_ns[3], uint64_t drawn)
{
    return read_ns[(drawn & UINT16_MAX) * 3 >> 16];
}

/* How long the die needs for this page. */
static inline uint64_t page_read_ns(const struct chm_flash *f, uint64_t page)
{
    return f->mixed ? kind_ns(f->read_ns, kinds_draw(f->seed, page) >> 16 * (page & 3))
                    : f->read_ns[0];
}

/* Have the channel, which could begin at first_ns, move for cost_ns; returns when it is through. */
static inline uint64_t channel_read(struct chm_flash_channel *c, uint64_t first_ns,
                                    uint64_t cost_ns)
{
    c->read_ns = chm_max(c->read_ns, first_ns) + cost_ns;
    c->busy_ns = chm_max(c->busy_ns, first_ns) + cost_ns;
    return c->read_ns;
}

/* `bytes` of one page. at_ns: the command has been understood. Returns when they are off the
 * channel. */
static uint64_t read_page(struct chm_flash *f, uint64_t at_ns, uint64_t page, uint64_t bytes)
{
    uint32_t die = (uint32_t)(page % f->dies_n);
    uint64_t done = die_read(f, &f->dies[die], at_ns, page_read_ns(f, page));
    uint64_t cost = chm_port_cost(&f->channel, bytes);
    uint64_t through =
        channel_read(&f->channels[die % f->channels_n], at_ns + f->read_min_ns, cost);

    return chm_max(through, done + cost);
}

/* The channels' part of read_dies: each has dies / channels of the dies, the first few one more. */
static uint64_t read_channels(struct chm_flash *f, uint64_t first_ns, uint32_t channel,
                              uint32_t dies, uint64_t cost_ns)
{
    uint32_t each = dies / f->channels_n, more = dies % f->channels_n;
    uint64_t through = 0;

    for (uint32_t i = 0; i < chm_min(dies, f->channels_n); i++) {
        uint64_t n = each + (i < more);
        through = chm_max(through, channel_read(&f->channels[channel], first_ns, n * cost_ns));
        channel = channel + 1 == f->channels_n ? 0 : channel + 1;
    }
    return through;
}

/* The dies d .. d_end - 1 read, of which the first has `page`, each for each_ns; 0: for a page of
 * its kind. Returns when all have. The innermost loop of large reads, so what it needs of f is in
 * variables of its own. */
static uint64_t dies_read(const struct chm_flash *f, struct chm_flash_die *d,
                          const struct chm_flash_die *d_end, uint64_t at_ns, uint64_t page,
                          uint64_t each_ns)
{
    const uint64_t read_ns[3] = {f->read_ns[0], f->read_ns[1], f->read_ns[2]}, seed = f->seed;
    uint64_t drawn = kinds_draw(seed, page) >> 16 * (page & 3), done = 0;

    for (; d < d_end; d++) {
        done = chm_max(done, die_read(f, d, at_ns, each_ns ? each_ns : kind_ns(read_ns, drawn)));
        page++;
        drawn = page & 3 ? drawn >> 16 : kinds_draw(seed, page);
    }
    return done;
}

/* `dies` dies in a row, from that of `page` on, with `each` whole pages from each. at_ns and result
 * as for read_page. */
static uint64_t read_dies(struct chm_flash *f, uint64_t at_ns, uint64_t page, uint32_t dies,
                          uint64_t each)
{
    uint64_t times = (each + f->planes - 1) / f->planes;
    uint64_t each_ns = f->mixed && times == 1 ? 0 : times * f->read_sum_ns / 3; /* many: the mean */
    uint32_t die = (uint32_t)(page % f->dies_n), most = f->dies_n - die;
    uint64_t done =
        dies_read(f, f->dies + die, f->dies + die + chm_min(dies, most), at_ns, page, each_ns);

    if (dies > most) { /* round the end */
        done = chm_max(done,
                       dies_read(f, f->dies, f->dies + (dies - most), at_ns, page + most, each_ns));
    }
    /* The last byte is through when its channel is, or a transfer after the last die. */
    return chm_max(done + chm_min(each, f->planes) * f->page_channel_ns,
                   read_channels(f, at_ns + f->read_min_ns, die % f->channels_n, dies,
                                 each * f->page_channel_ns));
}

/* Whole pages: every die has n / dies of them, the first few one more. */
static uint64_t read_pages(struct chm_flash *f, uint64_t at_ns, uint64_t page, uint64_t n)
{
    uint64_t each = n / f->dies_n;
    uint32_t more = (uint32_t)(n % f->dies_n);
    uint64_t through = more ? read_dies(f, at_ns, page, more, each + 1) : 0;

    if (each) {
        through = chm_max(through, read_dies(f, at_ns, page + more, f->dies_n - more, each));
    }
    return through;
}

/* The pages of a read of more than one; its first and last may be wanted in part only. */
static uint64_t read_many(struct chm_flash *f, uint64_t at_ns, uint64_t off, uint64_t bytes)
{
    uint64_t size = UINT64_C(1) << f->page_shift, mask = size - 1, through = 0;
    uint64_t page = off >> f->page_shift, end = off + bytes;
    uint64_t whole_end = end >> f->page_shift;

    if (off & mask) {
        through = read_page(f, at_ns, page, size - (off & mask));
        page++;
    }
    if (whole_end > page) {
        through = chm_max(through, read_pages(f, at_ns, page, whole_end - page));
    }
    if (end & mask) {
        through = chm_max(through, read_page(f, at_ns, whole_end, end & mask));
    }
    return through;
}

uint64_t chm_flash_read(struct chm_flash *f, uint64_t at_ns, uint64_t off, uint64_t bytes)
{
    uint64_t start = at_ns + f->command_ns, first = start + f->read_min_ns;
    uint64_t page = off >> f->page_shift, through, link, chunk;

    if (bytes == 0) {
        return start;
    }
    if (page == (off + bytes - 1) >> f->page_shift) {
        through = read_page(f, start, page, bytes);
        first += chm_port_cost(&f->channel, bytes);
        chunk = chm_port_cost(&f->link_out, bytes);
    } else {
        through = read_many(f, start, off, bytes);
        first += f->page_channel_ns;
        chunk = f->page_link_ns;
    }
    link = chm_port_take(&f->link_out, first, bytes);
    return chm_max(link, through + chunk);
}

/* ------------------------------------------------------------------ writes */

/* The last group has no more coming: have it programmed as it is. */
static uint64_t program_rest(struct chm_flash *f)
{
    uint64_t bytes = f->fill_bytes;

    f->fill_bytes = 0;
    return bytes ? program_group(f, f->link_in.busy_ns, bytes) : 0;
}

uint64_t chm_flash_write(struct chm_flash *f, uint64_t at_ns, uint64_t lead_ns, uint64_t last_ns,
                         uint64_t bytes, bool durable)
{
    uint64_t ready = at_ns + f->command_ns + lead_ns, programmed = 0, took = 0;

    while (bytes) {
        uint64_t n = chm_min(bytes, f->group_bytes - f->fill_bytes);
        if (f->fill_bytes == 0 && f->cache_groups && f->groups >= f->cache_groups) {
            ready = chm_max(ready, programmed_ns(f, f->groups - f->cache_groups));
        }
        took = chm_port_cost(&f->link_in, n);
        chm_port_take(&f->link_in, ready, n);
        f->fill_bytes += n;
        bytes -= n;
        if (f->fill_bytes == f->group_bytes) {
            f->fill_bytes = 0;
            programmed = chm_max(programmed, program_group(f, f->link_in.busy_ns, f->group_bytes));
        }
    }
    if (durable || f->cache_groups == 0) {
        programmed = chm_max(programmed, program_rest(f));
        return chm_max(programmed, f->link_in.busy_ns);
    }
    return chm_max(f->link_in.busy_ns, last_ns + f->command_ns + took);
}

uint64_t chm_flash_drain(struct chm_flash *f, uint64_t at_ns)
{
    uint64_t last = chm_max(at_ns, program_rest(f));
    uint64_t n = chm_min(f->groups, f->dies_n);

    for (uint64_t i = 1; i <= n; i++) {
        last = chm_max(last, programmed_ns(f, f->groups - i));
    }
    return last;
}

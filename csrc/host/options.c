/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - defaults of the option structs, and what values are refused. */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "fw/policy.h"
#include "host/link.h"
#include "host/options.h"
#include "media/sim_flash.h"
#include "util/util.h"

enum {
    BUFFER_SHARE = 4, /* write buffer: a quarter of the budget, within its bounds */
    REQUESTS_LIMIT = 1 << 20,
    DEPTH_LIMIT = 4096,
    UNIT_LIMIT = 1 << 30,
    LINE_LIMIT = 16 << 20,
    LIST_BYTES = 120,
};

static const uint64_t MIB = 1 << 20;
static const uint64_t BUFFER_MIN = 16ull << 20, BUFFER_MAX = 512ull << 20;

void chm_options_init(struct chm_options *o)
{
    *o = (struct chm_options){
        .size = sizeof(*o),
        .media = "auto",
        .npaths = 1,
        .dram_bytes = 256 * MIB,
        .policy = "window",
        .line_bytes = CHM_PAGE_BYTES,
        .line_fills = 14,
        .effective_percent = 100,
        .requests_max = 4096,
        .writes_max = 8192,
        .read_unit = 1 << 20,
        .read_depth = 128,
        .read_depth_pressed = 24,
        .flush_unit = 1 << 20,
        .flush_depth = 4,
        .flush_depth_reads = 1,
        .flush_low_percent = 25,
        .flush_high_percent = 50,
        .flush_age_ns = CHM_SECOND,
        .flush_idle_ns = CHM_SECOND / 1000,
        .flush_policy = "read-first",
        .barrier_interval_ns = CHM_SECOND,
        .barrier_bytes = 512 * MIB,
        .poll_ns = 20000,
        .link_rails = 1,
        .sim = {.capacity_bytes = 1024 * MIB,
                .stripe_bytes = MIB,
                .read_rate = 2000000000,
                .write_rate = 2000000000,
                .read_latency_ns = 80000,
                .write_latency_ns = 20000,
                .barrier_ns = 1000000},
        .pace = {.burst_bytes = MIB},
        .fault = {.late_ns = 10000000},
    };
}

void chm_format_options_init(struct chm_format_options *o)
{
    *o = (struct chm_format_options){.size = sizeof(*o), .stripe_bytes = 1 << 20};
}

#define FILL(field)                                                                                \
    do {                                                                                           \
        if (o->field == 0) {                                                                       \
            o->field = d.field;                                                                    \
        }                                                                                          \
    } while (0)

/* Zero means the default wherever zero itself makes no sense. */
static void fill_defaults(struct chm_options *o)
{
    struct chm_options d;

    chm_options_init(&d);
    FILL(media);
    FILL(npaths);
    FILL(dram_bytes);
    FILL(policy);
    FILL(line_bytes);
    FILL(line_fills);
    FILL(effective_percent);
    FILL(flush_policy);
    FILL(requests_max);
    FILL(writes_max);
    FILL(read_unit);
    FILL(read_depth);
    FILL(read_depth_pressed);
    FILL(flush_unit);
    FILL(flush_depth);
    FILL(flush_depth_reads);
    FILL(flush_low_percent);
    FILL(flush_high_percent);
    FILL(flush_age_ns);
    FILL(flush_idle_ns);
    FILL(barrier_interval_ns);
    FILL(barrier_bytes);
    FILL(poll_ns);
    FILL(link_rails);
    FILL(sim.capacity_bytes);
    FILL(sim.read_rate);
    FILL(sim.write_rate);
    FILL(sim.barrier_ns);
    FILL(sim.stripe_bytes);
    if (o->sim.dies) {
        chm_flash_defaults(&o->sim);
    }
    FILL(pace.burst_bytes);
    FILL(fault.late_ns);
    if (o->link_write_rate == 0) {
        o->link_write_rate = o->link_rate;
    }
    if (o->write_buffer_bytes == 0) {
        o->write_buffer_bytes = chm_max(o->dram_bytes / BUFFER_SHARE, BUFFER_MIN);
        o->write_buffer_bytes = chm_min(o->write_buffer_bytes, BUFFER_MAX);
        o->write_buffer_bytes = chm_min(o->write_buffer_bytes, o->dram_bytes / 2);
    }
    o->write_buffer_bytes = o->write_buffer_bytes / CHM_PAGE_BYTES * CHM_PAGE_BYTES;
    o->dram_bytes = o->dram_bytes / CHM_PAGE_BYTES * CHM_PAGE_BYTES;
}

static int bad(struct chm_error *err, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(err->text, sizeof(err->text), format, args);
    va_end(args);
    return -EINVAL;
}

static int check_unit(uint32_t unit, const char *name, struct chm_error *err)
{
    if (unit % CHM_PAGE_BYTES != 0 || unit > UNIT_LIMIT) {
        return bad(err, "%s is %u bytes: it must be a multiple of 4096, at most 1 GiB", name, unit);
    }
    return 0;
}

static int check_units(const struct chm_options *o, struct chm_error *err)
{
    int rc = check_unit(o->read_unit, "read_unit", err);

    return rc < 0 ? rc : check_unit(o->flush_unit, "flush_unit", err);
}

static int check_bounds(const struct chm_options *o, struct chm_error *err)
{
    if (o->requests_max > REQUESTS_LIMIT || o->writes_max > REQUESTS_LIMIT) {
        return bad(err, "requests_max and writes_max are at most %d", REQUESTS_LIMIT);
    }
    if (o->read_depth > DEPTH_LIMIT || o->flush_depth > DEPTH_LIMIT ||
        o->flush_depth_reads > DEPTH_LIMIT) {
        return bad(err, "read_depth, flush_depth and flush_depth_reads are at most %d",
                   DEPTH_LIMIT);
    }
    if (o->flush_low_percent > o->flush_high_percent || o->flush_high_percent > 100) {
        return bad(err, "flush_low_percent (%u) <= flush_high_percent (%u) <= 100 does not hold",
                   o->flush_low_percent, o->flush_high_percent);
    }
    if (o->durability > CHM_DURABILITY_STRICT) {
        return bad(err, "durability %u is not one of enum chm_durability", o->durability);
    }
    if (o->write_buffer_bytes >= o->dram_bytes) {
        return bad(err,
                   "write_buffer_bytes (%llu) leaves nothing of dram_bytes (%llu) to the window",
                   (unsigned long long)o->write_buffer_bytes, (unsigned long long)o->dram_bytes);
    }
    return 0;
}

static int check_link(const struct chm_options *o, struct chm_error *err)
{
    const uint32_t *j = o->link_jitter_ns;

    if (o->link_rails > CHM_LINK_RAILS_MAX) {
        return bad(err, "link_rails is %u: 1 or 2", o->link_rails);
    }
    if (o->link_rate == 0 && o->link_write_rate != 0) {
        return bad(err, "link_write_rate without link_rate: give both, or none for no link");
    }
    if (j[0] > j[1] || j[1] > j[2] || j[2] > j[3]) {
        return bad(err, "link_jitter_ns %u, %u, %u, %u: quantiles must not fall", j[0], j[1], j[2],
                   j[3]);
    }
    return 0;
}

/* ---- policies */

/* "a, b, c" of all names. */
static void list_names(const char *(*name)(uint32_t), char text[LIST_BYTES])
{
    size_t at = 0;

    text[0] = 0;
    for (uint32_t i = 0; name(i) && at < LIST_BYTES - 1; i++) {
        at += (size_t)snprintf(text + at, LIST_BYTES - at, "%s%s", i ? ", " : "", name(i));
    }
}

static int check_names(struct chm_options *o, struct chm_error *err)
{
    const struct chm_policy *policy = chm_policy_find(o->policy);
    const struct chm_flush_ops *flush = chm_flush_policy_find(o->flush_policy);
    char list[LIST_BYTES];

    if (!policy) {
        list_names(chm_policy_name, list);
        return bad(err, "policy %.40s is none of %s", o->policy, list);
    }
    if (!flush) {
        list_names(chm_flush_policy_name, list);
        return bad(err, "flush_policy %.40s is none of %s", o->flush_policy, list);
    }
    if (o->fcfs && flush != &chm_flush_fcfs && flush != &chm_flush_read_first) {
        return bad(err, "fcfs = 1 and flush_policy %.40s exclude each other", o->flush_policy);
    }
    /* The caller's strings need not outlive the call. */
    o->policy = policy->name;
    o->flush_policy = o->fcfs ? chm_flush_fcfs.name : flush->name;
    return 0;
}

static int check_lines(const struct chm_options *o, struct chm_error *err)
{
    if (o->line_bytes < CHM_PAGE_BYTES || o->line_bytes > LINE_LIMIT ||
        (o->line_bytes & (o->line_bytes - 1)) != 0) {
        return bad(err, "line_bytes is %u: it must be a power of two, 4 KiB to 16 MiB",
                   o->line_bytes);
    }
    if (o->line_fills > DEPTH_LIMIT) {
        return bad(err, "line_fills is at most %d", DEPTH_LIMIT);
    }
    if (o->effective_percent > 100) {
        return bad(err, "effective_percent is %u: at most 100", o->effective_percent);
    }
    return 0;
}

static int check_sim(const struct chm_options *o, struct chm_error *err)
{
    return strcmp(o->media, "sim") == 0 && o->sim.dies ? chm_flash_check(&o->sim, err) : 0;
}

static int check_paths(const struct chm_options *o, struct chm_error *err)
{
    bool sim = strcmp(o->media, "sim") == 0;

    if (o->npaths > CHM_MEMBERS_MAX) {
        return bad(err, "%u members; at most %d", o->npaths, CHM_MEMBERS_MAX);
    }
    if (sim && o->thread) {
        return bad(err,
                   "the simulated medium has virtual time, which only a stepped device can follow: "
                   "thread = 0");
    }
    if (sim && (o->sim.stripe_bytes % CHM_PAGE_BYTES != 0 || o->sim.stripe_bytes > 1u << 30)) {
        return bad(err, "sim.stripe_bytes is %u: a multiple of 4096, at most 1 GiB",
                   o->sim.stripe_bytes);
    }
    for (uint32_t i = 0; !sim && i < o->npaths; i++) {
        if (!o->paths || !o->paths[i]) {
            return bad(err, "path %u is missing", i);
        }
    }
    return 0;
}

int chm_options_settle(const struct chm_options *given, struct chm_options *out,
                       struct chm_error *err)
{
    int rc;

    if (!given || given->size != sizeof(*given)) {
        return bad(err, "options of another library version: call chm_options_init first");
    }
    *out = *given;
    fill_defaults(out);
    rc = check_units(out, err);
    rc = rc < 0 ? rc : check_bounds(out, err);
    rc = rc < 0 ? rc : check_link(out, err);
    rc = rc < 0 ? rc : check_sim(out, err);
    rc = rc < 0 ? rc : check_names(out, err);
    rc = rc < 0 ? rc : check_lines(out, err);
    return rc < 0 ? rc : check_paths(out, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* setup.c - a small device whose every option comes from the seed (explore.h). */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "explore/explore.h"

static uint64_t pick(uint64_t *rng, uint64_t below)
{
    return chm_random(rng) % below;
}

/* A power of two times unit. */
static uint64_t pick_size(uint64_t *rng, uint64_t unit, uint64_t steps)
{
    return unit << pick(rng, steps);
}

static void choose_medium(struct run *r, uint64_t *rng)
{
    struct chm_options *o = &r->opt;
    uint32_t flags = r->c->plan->flags;
    bool odd = pick(rng, 8) == 0;

    o->npaths = 1 + (uint32_t)pick(rng, MEMBERS_MAX);
    o->sim.capacity_bytes = 2 * MIB;
    o->sim.read_rate = pick_size(rng, 50000000, 7);
    o->sim.write_rate = pick_size(rng, 50000000, 7);
    o->sim.read_latency_ns = 1 + pick_size(rng, 5 * US, 6);
    o->sim.write_latency_ns = 1 + pick_size(rng, 5 * US, 8);
    o->sim.barrier_ns = 1 + pick_size(rng, 20 * US, 8);
    o->sim.volatile_cache = pick(rng, 2) || (flags & PLAN_VOLATILE);
    /* Blocks below a page: not where a page may be half written without anybody's fault. */
    o->force_align = odd && flags <= PLAN_ERRORS && !r->files ? 512 : 0;
}

/* Now and then the members are flash drives, with a cache that acknowledges before it programs. */
static void choose_flash(struct run *r, uint64_t *rng)
{
    struct chm_sim_options *s = &r->opt.sim;

    s->dies = pick(rng, 3) ? 0 : (uint32_t)pick_size(rng, 1, 4);
    s->planes = 1 + (uint32_t)pick(rng, 2);
    s->page_bytes = (uint32_t)pick_size(rng, 4 * KIB, 3);
    s->block_pages = 1 + (uint32_t)pick(rng, 16);
    s->program_ns = 1 + pick_size(rng, 20 * US, 6);
    s->erase_ns = pick(rng, 2) ? pick_size(rng, 100 * US, 5) : 0;
    s->suspend_ns = pick(rng, 2) ? pick(rng, 50 * US) : 0;
    s->cache_bytes = pick(rng, 2) ? pick_size(rng, 32 * KIB, 4) : 0;
    s->command_ns = pick(rng, 10 * US);
    s->software_ns = pick(rng, 4) ? 0 : pick(rng, 20 * US);
    s->dram_rate = pick(rng, 4) ? 0 : pick_size(rng, 200000000, 5);
    s->seed = r->c->seed;
}

static void choose_sizes(struct run *r, uint64_t *rng)
{
    struct chm_options *o = &r->opt;

    o->write_buffer_bytes = pick_size(rng, 32 * KIB, 3);
    o->dram_bytes = o->write_buffer_bytes + pick_size(rng, 128 * KIB, 2);
    o->requests_max = (uint32_t)(r->c->agree ? 64 : 8 + pick(rng, 40));
    o->writes_max = (uint32_t)(4 + pick(rng, 40));
    o->read_unit = (uint32_t)pick_size(rng, 4 * KIB, 6);
    o->flush_unit = (uint32_t)pick_size(rng, 4 * KIB, 6);
    o->read_depth = 1 + (uint32_t)pick(rng, 16);
    o->read_depth_pressed = 1 + (uint32_t)pick(rng, 8);
    o->flush_depth = 1 + (uint32_t)pick(rng, 6);
    o->flush_depth_reads = 1 + (uint32_t)pick(rng, 3);
}

/* Of the line cache; the window has none of these. */
static void choose_lines(struct run *r, uint64_t *rng)
{
    struct chm_options *o = &r->opt;

    o->policy = r->c->policy;
    o->line_bytes = (uint32_t)pick_size(rng, 4 * KIB, 4);
    o->ways = (uint32_t)pick(rng, o->line_bytes > 16 * KIB ? 3 : 5);
    o->line_fills = 1 + (uint32_t)pick(rng, 8);
    o->effective_percent = pick(rng, 3) ? 100 : 60 + (uint32_t)pick(rng, 40);
    o->fill_on_write = (uint32_t)pick(rng, 2);
}

static void choose_policy(struct run *r, uint64_t *rng)
{
    static const char *const flush_policies[] = {"read-first", "read-first", "fcfs", "idle-only"};
    struct chm_options *o = &r->opt;
    uint64_t link_rate;

    o->flush_low_percent = 1 + (uint32_t)pick(rng, 50);
    o->flush_high_percent = o->flush_low_percent + (uint32_t)pick(rng, 50);
    o->flush_age_ns = 1 + pick_size(rng, 50 * US, 10);
    o->flush_idle_ns = 1 + pick_size(rng, 10 * US, 10);
    o->durability = (uint32_t)pick(rng, 3);
    o->barrier_interval_ns = 1 + pick_size(rng, 100 * US, 8);
    o->barrier_bytes = pick_size(rng, 16 * KIB, 6);
    o->flush_policy = flush_policies[pick(rng, CHM_COUNT(flush_policies))];
    link_rate = pick(rng, 4) ? 0 : pick_size(rng, 100000000, 6);
    o->link_rate = r->files ? 0 : link_rate; /* what is drawn is the same on all media */
    o->link_latency_ns = pick(rng, 3 * US);
}

/* What a file needs beside its options: a name, and a header in it. */
static void make_files(struct run *r)
{
    struct chm_format_options f;
    struct chm_error err;

    chm_format_options_init(&f);
    f.paths = r->paths;
    f.npaths = r->opt.npaths;
    f.capacity_bytes = (uint64_t)r->opt.npaths * MIB;
    f.force = 1;
    for (uint32_t i = 0; i < r->opt.npaths; i++) {
        snprintf(r->path[i], sizeof(r->path[i]), "%.200s/member%u-%d", r->c->folder, i,
                 (int)getpid());
        r->paths[i] = r->path[i];
    }
    if (chm_format(&f, &err) != 0) {
        fprintf(stderr, "explore: cannot make files in %s: %s\n", r->c->folder, err.text);
        exit(2);
    }
    r->opt.paths = r->paths;
}

void setup_options(struct run *r)
{
    uint64_t rng = r->c->seed ^ UINT64_C(0x0B7);

    chm_options_init(&r->opt);
    r->files = strcmp(r->c->media, "sim") != 0;
    r->opt.media = r->c->media;
    r->opt.huge_pages = 1;
    r->opt.prefault = 2;
    r->opt.poison = 1;
    choose_medium(r, &rng);
    choose_sizes(r, &rng);
    choose_policy(r, &rng);
    choose_lines(r, &rng);
    choose_flash(r, &rng);
    r->with_space = pick(&rng, 2) == 0;
    if (plan_script(r->c, r->script, sizeof(r->script)) > 0) {
        r->opt.fault.script = r->script;
    }
    if (r->files) {
        make_files(r);
    }
}

bool setup_open(struct run *r)
{
    struct chm_error err = {0};
    int rc = chm_open(&r->opt, &r->dev, &err);

    if (rc == -EOPNOTSUPP && r->files) {
        return false; /* no io_uring, or no direct I/O in this folder */
    }
    if (rc != 0) {
        run_fail(r, "open", "open: %d, %s", rc, err.text);
    }
    chm_info(r->dev, &r->info);
    r->pages = r->info.capacity_bytes / PAGE;
    r->space_base = (r->pages - SPACE_PAGES) * PAGE;
    if (!r->files) {
        probe_attach(r);
    }
    object_open_space(r);
    return true;
}

/* After -ETIMEDOUT the device keeps what the drive might still write to. No simulated drive does
 * once it is closed, so that it can be given back here, where thousands of devices are opened. */
static void free_kept(struct chm_fw *fw, struct chm_regions *regions, uint8_t *memory,
                      uint64_t bytes, int fd)
{
    munmap(memory, bytes);
    close(fd);
    chm_fw_free(fw);
    free(regions);
}

int setup_close(struct run *r)
{
    struct chm_dev *dev = r->dev;
    struct chm_fw *fw = dev->fw;
    struct chm_regions *regions = dev->regions;
    uint8_t *memory = dev->memory.base;
    uint64_t bytes = dev->memory.bytes;
    int rc, fd = dev->memory.fd;

    if (r->space) {
        rc = chm_space_close(r->space);
        if (rc != 0) {
            run_fail(r, "leak", "closing the space: %d", rc);
        }
        r->space = NULL;
    }
    rc = chm_close(dev, LONG_NS);
    r->dev = NULL;
    if (rc == -ETIMEDOUT && !r->files) {
        free_kept(fw, regions, memory, bytes, fd);
    }
    return rc;
}

/* The medium, and files, are of no more use. */
void setup_discard(struct run *r)
{
    if (r->sim) {
        chm_medium_close(r->sim, 0);
        r->sim = NULL;
    }
    for (uint32_t i = 0; r->files && i < r->opt.npaths; i++) {
        unlink(r->path[i]);
    }
}

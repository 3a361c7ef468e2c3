/* SPDX-License-Identifier: Apache-2.0 */
/* open.c - opening and closing a device, and saying what it is. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fw/header.h"
#include "host/door.h"
#include "host/options.h"
#include "util/util.h"

enum {
    FRAME_SMALL = 64 << 10,
    FRAME_HUGE = 2 << 20,
    PREFAULT_WAIT = 1,
    PREFAULT_NONE = 2,
};

#define STRING(x) #x
#define VERSION(major, minor) STRING(major) "." STRING(minor) ".0"

const char *chm_version(void)
{
    return VERSION(0, 1);
}

/* ---- members */

static int fail_at(struct chm_error *err, int rc, const char *path, const char *why)
{
    char text[sizeof(err->text)];

    snprintf(text, sizeof(text), "%s: %.150s", path, why);
    memcpy(err->text, text, sizeof(text));
    return rc;
}

/* Does member i belong where it is? The first member's header sets the standard. */
static int check_member(struct chm_dev *dev, uint32_t i, const struct chm_header *h,
                        struct chm_error *err)
{
    const char *path = dev->opts.paths[i];

    if (i > 0 && memcmp(dev->device_id, h->device_id, sizeof(dev->device_id)) != 0) {
        return fail_at(err, -EXDEV, path, "belongs to another device than the first member");
    }
    if (h->map.members != dev->opts.npaths) {
        snprintf(err->text, sizeof(err->text), "%.120s: the device has %u members, %u were given",
                 path, h->map.members, dev->opts.npaths);
        return -EXDEV;
    }
    if (h->member != i) {
        snprintf(err->text, sizeof(err->text), "%.120s: is member %u, but was given as member %u",
                 path, h->member, i);
        return -EXDEV;
    }
    if (dev->backing[i].size_bytes < chm_map_member_bytes(&h->map)) {
        snprintf(err->text, sizeof(err->text),
                 "%.120s: has %llu bytes, its header says %llu: truncated", path,
                 (unsigned long long)dev->backing[i].size_bytes,
                 (unsigned long long)chm_map_member_bytes(&h->map));
        return -ENOSPC;
    }
    return 0;
}

static int open_member(struct chm_dev *dev, uint32_t i, struct chm_error *err)
{
    const char *path = dev->opts.paths[i];
    uint8_t page[CHM_HEADER_BYTES];
    struct chm_header h = {0};
    int rc = chm_backing_open(path, dev->opts.buffered, &dev->backing[i], err);

    if (rc < 0) {
        return rc;
    }
    dev->members++;
    rc = chm_backing_read_header(&dev->backing[i], page);
    if (rc < 0) {
        return fail_at(err, rc, path, "the header cannot be read");
    }
    rc = chm_header_decode(page, &h, err);
    if (rc < 0) {
        char why[sizeof(err->text)];

        memcpy(why, err->text, sizeof(why));
        return fail_at(err, rc, path, why);
    }
    rc = check_member(dev, i, &h, err);
    if (rc == 0 && i == 0) {
        dev->map = h.map;
        memcpy(dev->device_id, h.device_id, sizeof(dev->device_id));
    }
    return rc;
}

/* A simulated device has no files and no header: its shape is in the options. */
static int open_sim(struct chm_dev *dev, struct chm_error *err)
{
    dev->map.members = dev->opts.npaths;
    dev->map.stripe_bytes = dev->opts.sim.stripe_bytes;
    dev->map.capacity_bytes =
        chm_map_capacity(dev->map.members, dev->opts.sim.capacity_bytes, dev->map.stripe_bytes);
    if (dev->map.capacity_bytes == 0) {
        snprintf(err->text, sizeof(err->text),
                 "sim.capacity_bytes is %llu: at least 1 MiB, set aside, and a stripe unit",
                 (unsigned long long)dev->opts.sim.capacity_bytes);
        return -EINVAL;
    }
    return 0;
}

static int open_members(struct chm_dev *dev, struct chm_error *err)
{
    int rc = 0;

    dev->sim = strcmp(dev->opts.media, "sim") == 0;
    if (dev->sim) {
        return open_sim(dev, err);
    }
    for (uint32_t i = 0; i < dev->opts.npaths && rc == 0; i++) {
        rc = open_member(dev, i, err);
    }
    return rc;
}

static void close_members(struct chm_dev *dev)
{
    for (uint32_t i = 0; i < dev->members; i++) {
        chm_backing_close(&dev->backing[i]);
    }
    dev->members = 0;
}

/* ---- medium and firmware */

int chm_dev_bring_up(struct chm_dev *dev, struct chm_error *err)
{
    struct chm_media_args media = {
        .opts = &dev->opts,
        .backings = dev->sim ? NULL : dev->backing,
        .members = dev->map.members,
        .regions = dev->regions,
        .inflight_max = chm_fw_depth(&dev->opts),
        .one_thread = dev->threaded,
    };
    struct chm_fw_args args = {
        .opts = &dev->opts,
        .regions = dev->regions,
        .memory = dev->memory.base,
        .window_bytes = dev->window_bytes,
        .write_buffer_bytes = dev->opts.write_buffer_bytes,
        .frame_bytes = dev->memory.huge ? FRAME_HUGE : FRAME_SMALL,
        .map = dev->map,
        .cells = dev->cells,
    };
    int rc = chm_media_open(&media, &dev->medium, err);

    if (rc < 0) {
        return rc;
    }
    /* No I/O may be larger than the medium takes. */
    dev->opts.read_unit = (uint32_t)chm_min(dev->opts.read_unit, dev->medium->caps.transfer_max);
    dev->opts.flush_unit = (uint32_t)chm_min(dev->opts.flush_unit, dev->medium->caps.transfer_max);
    dev->link.dram = dev->medium->caps.dram;
    args.medium = dev->medium;
    rc = chm_fw_open(&args, &dev->fw, err);
    if (rc < 0) {
        chm_medium_close(dev->medium, 0);
        dev->medium = NULL;
    }
    return rc;
}

int chm_dev_take_down(struct chm_dev *dev, uint64_t deadline_ns)
{
    int rc = chm_fw_shutdown(dev->fw, deadline_ns);
    int closed = chm_medium_close(dev->medium, deadline_ns);

    dev->medium = NULL;
    return closed < 0 ? closed : rc;
}

/* ---- open */

static int open_memory(struct chm_dev *dev, struct chm_error *err)
{
    /* A simulation without contents touches little of it: only what callers write. */
    bool sparse = dev->sim && dev->opts.sim.no_contents;
    struct chm_region *region;
    int rc = chm_memory_open(&dev->memory, dev->opts.dram_bytes, sparse ? 1 : dev->opts.huge_pages,
                             dev->opts.lock_memory && !sparse, sparse, err);

    if (rc < 0) {
        return rc;
    }
    dev->regions = calloc(1, sizeof(*dev->regions));
    if (!dev->regions) {
        return -ENOMEM;
    }
    region = &dev->regions->at[0];
    atomic_store(&region->base, dev->memory.base);
    atomic_store(&region->len, dev->memory.bytes);
    atomic_store(&dev->regions->version, 1);
    dev->window_bytes = dev->opts.dram_bytes - dev->opts.write_buffer_bytes;
    if (sparse || dev->opts.prefault == PREFAULT_NONE) {
        return 0;
    }
    return chm_memory_prefault(&dev->memory, region, dev->opts.prefault == PREFAULT_WAIT);
}

static int start(struct chm_dev *dev, struct chm_error *err)
{
    dev->threaded = dev->opts.thread != 0;
    chm_link_init(&dev->link, &dev->opts);
    return dev->threaded ? chm_thread_start(dev, err) : chm_dev_bring_up(dev, err);
}

/* Everything but firmware and medium; keep: leave alone what the system may still write to. */
static void dispose(struct chm_dev *dev, bool keep)
{
    chm_memory_close(&dev->memory, keep); /* ends the helper, which writes to regions */
    if (!keep) {
        close_members(dev); /* else they stay locked: I/O on them is in flight */
        if (dev->fw) {
            chm_fw_free(dev->fw);
        }
        free(dev->regions);
    }
    chm_cells_close(dev);
    free(dev);
}

int chm_open(const struct chm_options *o, chm_dev **out, struct chm_error *err)
{
    struct chm_error ignored = {0};
    struct chm_dev *dev;
    int rc;

    err = err ? err : &ignored;
    *err = (struct chm_error){0};
    if (!out) {
        return -EINVAL;
    }
    dev = calloc(1, sizeof(*dev));
    if (!dev) {
        return -ENOMEM;
    }
    dev->ended.fd = dev->memory.fd = -1;
    rc = chm_options_settle(o, &dev->opts, err);
    rc = rc < 0 ? rc : open_members(dev, err);
    rc = rc < 0 ? rc : chm_cells_open(dev);
    rc = rc < 0 ? rc : open_memory(dev, err);
    rc = rc < 0 ? rc : start(dev, err);
    if (rc < 0) {
        err->code = rc;
        if (!err->text[0]) {
            snprintf(err->text, sizeof(err->text), "%s", strerror(-rc));
        }
        dispose(dev, false);
        return rc;
    }
    *out = dev;
    return 0;
}

int chm_close(chm_dev *dev, uint64_t timeout_ns)
{
    int rc;

    if (!dev) {
        return 0;
    }
    rc = chm_door_check(dev);
    if (rc < 0) {
        return rc;
    }
    if (atomic_load(&dev->users) > 0) {
        return -EBUSY;
    }
    dev->stop_deadline_ns = chm_door_deadline(dev, timeout_ns);
    rc = dev->threaded ? chm_thread_stop(dev) : chm_dev_take_down(dev, dev->stop_deadline_ns);
    dispose(dev, rc == -ETIMEDOUT);
    return rc;
}

/* ---- what it is */

uint64_t chm_now(chm_dev *dev)
{
    return chm_door_check(dev) < 0 ? 0 : chm_medium_now(dev->medium);
}

int chm_step(chm_dev *dev, uint64_t until_ns)
{
    int rc = chm_door_check(dev);

    if (rc < 0) {
        return rc;
    }
    if (dev->threaded) {
        return -EPERM;
    }
    rc = chm_fw_step(dev->fw, until_ns);
    chm_cells_publish(dev);
    return dev->fw->dead ? -ENODEV : rc;
}

static void info_sizes(const struct chm_dev *dev, struct chm_info *out)
{
    out->capacity_bytes = dev->map.capacity_bytes;
    out->dram_bytes = dev->opts.dram_bytes;
    out->window_bytes = dev->fw->window.bytes;
    out->cache_bytes = dev->fw->cache.lines_max * dev->fw->cache.line_bytes;
    out->write_buffer_bytes = dev->fw->wbuf.bytes;
    out->metadata_bytes = dev->fw->block_bytes + sizeof(*dev->fw) + sizeof(*dev) +
                          dev->opts.requests_max * sizeof(struct chm_cell) +
                          chm_queue_bytes(dev->queue->mask + 1) +
                          (dev->ended.mask + 1) * sizeof(*dev->ended.ring);
    out->frame_bytes = dev->fw->window.frame_bytes;
    out->prefaulted_bytes = atomic_load(&dev->memory.touched);
    out->prefault_ns = atomic_load(&dev->memory.touch_ns);
    out->huge_bytes = dev->memory.huge ? dev->memory.bytes : atomic_load(&dev->memory.collapsed);
    out->link_rate = dev->link.read.rate * dev->link.rails;
    out->link_write_rate = dev->link.write.rate * dev->link.rails;
    out->members = dev->map.members;
    out->stripe_bytes = dev->map.stripe_bytes;
}

static void info_medium(const struct chm_dev *dev, const struct chm_medium_caps *caps,
                        struct chm_info *out)
{
    out->block_bytes = caps->block_bytes;
    out->align_bytes = caps->align_bytes;
    out->transfer_max = caps->transfer_max;
    out->direct = caps->direct;
    out->fixed_buffers = caps->fixed_buffers;
    out->virtual_time = caps->virtual_time;
    out->contents = caps->contents;
    snprintf(out->media, sizeof(out->media), "%s", caps->name);
    /* Two notes that do not fit are cut, and that is fine. */
    int whole = snprintf(out->note, sizeof(out->note), "%s%s%s", caps->note,
                         caps->note[0] && dev->memory.note[0] ? "; " : "", dev->memory.note);

    CHM_ASSERT(whole >= 0);
}

int chm_info(chm_dev *dev, struct chm_info *out)
{
    struct chm_medium_caps caps;
    int rc = out ? chm_door_call(dev, CHM_OP_CAPS, 0, 0, &caps, UINT64_MAX) : -EINVAL;

    if (rc < 0) {
        return rc;
    }
    *out = (struct chm_info){0};
    info_sizes(dev, out);
    info_medium(dev, &caps, out);
    snprintf(out->policy, sizeof(out->policy), "%s", dev->opts.policy);
    snprintf(out->flush_policy, sizeof(out->flush_policy), "%s", dev->opts.flush_policy);
    out->threaded = dev->threaded;
    out->huge_pages = dev->memory.huge;
    out->locked = dev->memory.locked;
    out->degraded = atomic_load(&dev->fw->degraded);
    out->memory_fd = dev->memory.fd;
    for (size_t i = 0; i < sizeof(dev->device_id); i++) {
        snprintf(out->device_id + 2 * i, 3, "%02x", dev->device_id[i]);
    }
    return 0;
}

int chm_stats(chm_dev *dev, struct chm_stats *out)
{
    int rc = out ? chm_door_call(dev, CHM_OP_STATS, 0, 0, out, UINT64_MAX) : -EINVAL;

    if (rc == 0) {
        out->delivered_bytes = atomic_load(&dev->delivered);
        out->refused += atomic_load(&dev->refused);
        out->write_refused += atomic_load(&dev->write_refused);
    }
    return rc;
}

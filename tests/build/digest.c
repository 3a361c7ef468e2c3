/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest.c - one run of the whole firmware on two simulated flash drives, from a seed; prints how
 * many I/Os they did and the digest of them. test_digest.py builds it in several ways: what the
 * compiler makes of it must not show.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "chm.h"
#include "util/check.h"
#include "util/util.h"

enum { MIB = 1 << 20, OPERATIONS = 2000, SPACE_MIB = 2048, AHEAD = 8 };

static void drives(struct chm_options *o, uint64_t seed)
{
    chm_options_init(o);
    o->media = "sim";
    o->npaths = 2;
    o->dram_bytes = 64 * MIB;
    o->link_rate = 25000000000;
    o->fault.seed = seed;
    o->fault.late_ppm = 20000;
    o->fault.swap_ppm = 20000;
    o->sim.capacity_bytes = UINT64_C(4096) * MIB;
    o->sim.no_contents = 1;
    o->sim.volatile_cache = 1;
    o->sim.dies = 32;
    o->sim.planes = 2;
    o->sim.block_pages = 32;
    o->sim.page_read_ns[0] = 41003;
    o->sim.page_read_ns[1] = 60007;
    o->sim.page_read_ns[2] = 83009;
    o->sim.erase_ns = 3000017;
    o->sim.suspend_ns = seed % 2 ? 5003 : 0;
    o->sim.cache_bytes = 4 * MIB;
    o->sim.command_ns = 15013;
    o->sim.software_ns = 1009;
    o->sim.dram_rate = 19000000019;
    o->sim.read_rate = 12000000043;
    o->sim.write_rate = 9000000011;
    o->sim.seed = seed;
}

static void write_some(chm_dev *dev, uint64_t addr, uint64_t len, const void *bytes)
{
    int rc = chm_write(dev, addr, bytes, len);

    if (rc == -EAGAIN) {
        rc = chm_flush(dev, UINT64_MAX);
    }
    CHECK_EQ(rc, 0);
}

static void stage(chm_dev *dev, uint64_t addr, uint64_t len, uint64_t *oldest)
{
    struct chm_issue item = {.addr = addr, .len = len};

    if (*oldest) {
        CHECK_EQ(chm_wait(dev, *oldest, UINT64_MAX), 0);
        CHECK_EQ(chm_release(dev, *oldest), 0);
    }
    CHECK_EQ(chm_issue(dev, &item, 1, NULL), 1);
    *oldest = item.req;
}

static void one_operation(chm_dev *dev, uint64_t i, uint64_t *seed, uint8_t *memory)
{
    static const uint64_t lens[] = {4096, 12288, 65536, MIB};
    uint64_t what = chm_random(seed) % 16, len = lens[chm_random(seed) % CHM_COUNT(lens)];
    uint64_t addr = chm_random(seed) % (SPACE_MIB - 2) * MIB + chm_random(seed) % 256 * 4096;
    uint64_t *reqs = (uint64_t *)(void *)memory; /* its first page; bytes come after it */
    struct chm_read read = {.addr = addr, .len = len, .buf = memory + 4096};

    if (what < 5) {
        write_some(dev, addr, len, memory + 4096);
    } else if (what < 10) {
        stage(dev, addr, len, &reqs[i % AHEAD]);
    } else if (what < 14) {
        CHECK_EQ(chm_read(dev, &read, 1, UINT64_MAX), 1);
    } else if (what < 15) {
        CHECK_EQ(chm_flush(dev, UINT64_MAX), 0);
    } else {
        CHECK_EQ(chm_trim(dev, addr, len), 0);
    }
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    struct chm_stats *stats = calloc(1, sizeof(*stats));
    uint8_t *memory = aligned_alloc(4096, 2 * MIB);
    struct chm_options o;
    struct chm_error err;
    chm_dev *dev;

    CHECK(stats && memory);
    memset(memory, 0, 2 * MIB);
    drives(&o, seed);
    CHECK_EQ(chm_open(&o, &dev, &err), 0);
    for (uint64_t i = 0; i < OPERATIONS; i++) {
        one_operation(dev, i, &seed, memory);
    }
    CHECK_EQ(chm_flush(dev, UINT64_MAX), 0);
    CHECK_EQ(chm_stats(dev, stats), 0);
    printf("%" PRIu64 " %016" PRIx64 " %" PRIu64 "\n", stats->sim_ios, stats->sim_digest,
           chm_now(dev));
    CHECK_EQ(chm_close(dev, UINT64_MAX), 0);
    free(memory);
    free(stats);
    return 0;
}

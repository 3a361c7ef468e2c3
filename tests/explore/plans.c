/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plans.c - which I/O gets which fault, and where the power is cut (explore.h).
 *
 * The faults of a run are a script with one line per faulty I/O, drawn beforehand, and not rates:
 * so a line can be left out when a finding is made smaller. The seed also chooses how many there
 * are. To add a plan, add a line to the table; `flags` say what the model has to put up with.
 */
#include <stdio.h>

#include "explore/explore.h"

enum {
    PPM = 1000000,
    IOS_MAX = 500, /* I/Os that may get a fault; few streams have more */
};

static const struct plan plans[] = {
    {.name = "none", .what = "no faults"},
    {.name = "eio", .flags = PLAN_ERRORS, .err = 1, .what = "reads, writes, barriers, trims fail"},
    {.name = "short", .flags = PLAN_ERRORS, .cut_short = 1, .what = "fewer bytes than asked for"},
    {.name = "torn", .flags = PLAN_LIES, .torn = 1, .what = "a part lands, success is reported"},
    {.name = "lost", .flags = PLAN_LIES, .lost = 1, .what = "nothing lands, success is reported"},
    {.name = "late", .late = 1, .what = "handed back much later"},
    {.name = "swap", .swap = 1, .what = "handed back after the next one"},
    {.name = "never", .flags = PLAN_HANGS, .never = 1, .what = "not handed back before close"},
    {.name = "mixed",
     .flags = PLAN_ERRORS | PLAN_LIES,
     .err = 3,
     .cut_short = 4,
     .torn = 1,
     .lost = 1,
     .late = 4,
     .swap = 4,
     .what = "all of these but never"},
    {.name = "cut", .flags = PLAN_CUT_EACH, .what = "power cut at every write, one run for each"},
    {.name = "cut-cache",
     .flags = PLAN_CUT_EACH | PLAN_VOLATILE,
     .what = "the same with a volatile cache in the drive"},
    {.name = "cut-some",
     .flags = PLAN_CUT_SOME,
     .what = "power cuts at random writes; the stream goes on on what is left"},
    {.name = "cut-mixed",
     .flags = PLAN_CUT_SOME | PLAN_ERRORS | PLAN_LIES,
     .err = 3,
     .cut_short = 3,
     .torn = 1,
     .lost = 1,
     .late = 4,
     .swap = 4,
     .what = "random power cuts and all faults but never"},
};

const struct plan *plan_at(size_t n)
{
    return n < CHM_COUNT(plans) ? &plans[n] : NULL;
}

const struct plan *plan_find(const char *name)
{
    for (size_t i = 0; i < CHM_COUNT(plans); i++) {
        if (strcmp(plans[i].name, name) == 0) {
            return &plans[i];
        }
    }
    return NULL;
}

static uint32_t total_share(const struct plan *p)
{
    return (uint32_t)p->err + p->cut_short + p->torn + p->lost + p->late + p->never + p->swap;
}

/* One line of the script, without its number and end. */
static void draw_fault(const struct plan *p, uint64_t *rng, char *text, size_t size)
{
    static const int errors[] = {EIO, EIO, EIO, EAGAIN, EBUSY, EINTR, ENODATA};
    uint32_t n = (uint32_t)(chm_random(rng) % total_share(p));
    uint64_t draw = chm_random(rng);

    if (n < p->err) {
        snprintf(text, size, "err %d", errors[draw % CHM_COUNT(errors)]);
    } else if ((n -= p->err) < p->cut_short) {
        uint64_t unit = draw % 3 ? PAGE : 500;
        snprintf(text, size, "short %" PRIu64, draw / 3 % 12 * unit);
    } else if ((n -= p->cut_short) < p->torn) {
        snprintf(text, size, "torn %" PRIu64, draw % 8 * PAGE);
    } else if ((n -= p->torn) < p->lost) {
        snprintf(text, size, "lost");
    } else if ((n -= p->lost) < p->late) {
        snprintf(text, size, "late %" PRIu64, (1 + draw % 20) * (draw % 7 ? 100 * US : 3 * MS));
    } else {
        snprintf(text, size, n - p->late < p->never ? "never" : "swap");
    }
}

uint32_t plan_script(const struct plan_case *c, char *text, size_t size)
{
    static const uint32_t rates[] = {5000, 30000, 150000, 400000};
    static const char *const kinds[] = {"any", "any", "read", "write"};
    uint64_t rng = c->seed ^ UINT64_C(0xFA17);
    uint32_t rate = rates[chm_random(&rng) % CHM_COUNT(rates)], lines = 0;
    const char *kind = kinds[chm_random(&rng) % CHM_COUNT(kinds)];
    size_t used = 0;

    text[0] = '\0';
    rate = c->plan->flags & PLAN_HANGS ? rates[chm_random(&rng) % 2] : rate;
    for (uint32_t n = 0; n < IOS_MAX && lines < LINES_MAX && total_share(c->plan) > 0; n++) {
        char fault[24];
        if (chm_random(&rng) % PPM >= rate) {
            continue;
        }
        draw_fault(c->plan, &rng, fault, sizeof(fault));
        if (c->skip_fault && c->skip_fault[lines++]) {
            continue;
        }
        lines += c->skip_fault == NULL;
        used += (size_t)snprintf(text + used, size - used, "%u %s %s\n", n, kind, fault);
    }
    return lines;
}

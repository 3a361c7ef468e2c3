/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - sweeps over seeds (explore.h). Run through tools/explore, which builds it, runs several
 * at a time, and makes what they find smaller.
 *
 *     engine --from 1 --count 1000 --plan eio --ops 120 --policy window --media sim
 *            --cut K --skip-ops 3,4 --skip-faults 0 --folder DIR --verbose --plans --script
 *
 * Output: one line of JSON, the sum of what was done, or the first finding. Exit code 0 or 1; 2 for
 * bad arguments.
 */
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "explore/explore.h"

enum {
    TWICE_EVERY = 16, /* of so many seeds one runs twice and has to do the same */
    CPU_SECONDS = 20, /* of one run: it is in a loop that does not even ask the medium */
    MEDIA_MAX = 4,
};

struct sweep {
    struct plan_case c;
    uint64_t from, count;
    const char *media[MEDIA_MAX];
    uint32_t nmedia;
    bool skip_op[OPS_MAX], skip_fault[LINES_MAX];
    bool script;
    uint64_t runs, writes, cuts, digest, skipped;
};

/* What the handler of a deadly signal has to tell. */
static struct run *running;

/* ------------------------------------------------------------------ findings */

static void print_finding(const struct run *r, const char *kind, const char *text)
{
    printf("{\"found\": \"%s\", \"text\": \"%s\", \"seed\": %" PRIu64
           ", \"plan\": \"%s\", \"cut\": %" PRIu64
           ", \"op\": %u, \"doing\": \"%s\", \"media\": \"%s\"}\n",
           kind, text, r->c->seed, r->c->plan->name, r->c->cut, r->op, r->doing, r->c->media);
    fflush(stdout);
}

void run_fail(struct run *r, const char *kind, const char *format, ...)
{
    char text[TEXT_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    run_say(r, "\n  %s: %s\n", kind, text);
    print_finding(r, kind, text);
    for (uint32_t i = 0; r->files && i < r->opt.npaths; i++) {
        unlink(r->path[i]);
    }
    _exit(1);
}

static void on_signal(int number)
{
    const char *kind = number == SIGABRT ? "assert" : number == SIGPROF ? "hang" : "crash";
    char text[64];

    snprintf(text, sizeof(text), "signal %d", number);
    print_finding(running, kind, text);
    _exit(1);
}

static void watch(void)
{
    static const int deadly[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGPROF};

    for (size_t i = 0; i < CHM_COUNT(deadly); i++) {
        signal(deadly[i], on_signal);
    }
}

/* ------------------------------------------------------------------ runs */

static uint64_t run_one(struct sweep *s, struct run *r, const struct plan_case *c)
{
    struct itimerval limit = {.it_value = {.tv_sec = CPU_SECONDS}};
    uint64_t writes;

    setitimer(ITIMER_PROF, &limit, NULL);
    writes = run_case(r, c);
    if (writes == UINT64_MAX) {
        s->skipped++;
        return writes;
    }
    s->runs++;
    s->writes += writes;
    s->cuts += r->cuts;
    s->digest = s->digest * 31 + r->digest;
    return writes;
}

/* The same case again does the same. */
static void run_again(struct sweep *s, struct run *r, const struct plan_case *c)
{
    uint64_t before = r->digest;

    run_one(s, r, c);
    if (r->digest != before) {
        run_fail(r, "digest", "the same case ran differently the second time");
    }
}

/* The power is cut at every write of the stream, each time from the start. */
static void run_cuts(struct sweep *s, struct run *r, uint64_t writes)
{
    struct plan_case c = s->c;

    for (uint64_t k = 1; k <= writes; k++) {
        c.cut = k;
        run_one(s, r, &c);
    }
}

/* The same stream on several media: all read the same. */
static void run_media(struct sweep *s, struct run *r)
{
    struct plan_case c = s->c;
    uint64_t bytes = 0;
    bool first = true;

    c.agree = true;
    for (uint32_t i = 0; i < s->nmedia; i++) {
        c.media = s->media[i];
        if (run_one(s, r, &c) == UINT64_MAX) {
            continue;
        }
        if (!first && r->bytes != bytes) {
            run_fail(r, "media", "%s reads other bytes than the medium before it", c.media);
        }
        bytes = r->bytes;
        first = false;
    }
}

static void run_seed(struct sweep *s, struct run *r)
{
    uint64_t writes;

    if (s->nmedia > 1 || strcmp(s->media[0], "sim") != 0) {
        run_media(s, r);
        return;
    }
    s->c.media = "sim";
    writes = run_one(s, r, &s->c);
    if (s->c.seed % TWICE_EVERY == 0) {
        run_again(s, r, &s->c);
    }
    if (s->c.plan->flags & PLAN_CUT_EACH && s->c.cut == 0) {
        run_cuts(s, r, writes);
    }
}

/* ------------------------------------------------------------------ arguments */

_Noreturn static void usage(const char *what, const char *arg)
{
    fprintf(stderr, "engine: %s%s\n", what, arg ? arg : "");
    exit(2);
}

static void set_list(char *text, bool *list, size_t n)
{
    for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
        size_t at = strtoul(word, NULL, 10);
        if (at < n) {
            list[at] = true;
        }
    }
}

static void set_media(struct sweep *s, char *text)
{
    s->nmedia = 0;
    for (char *word = strtok(text, ","); word && s->nmedia < MEDIA_MAX; word = strtok(NULL, ",")) {
        s->media[s->nmedia++] = word;
    }
}

static void list_plans(void)
{
    for (size_t i = 0; plan_at(i); i++) {
        printf("{\"plan\": \"%s\", \"cuts\": %s, \"what\": \"%s\"}\n", plan_at(i)->name,
               plan_at(i)->flags & PLAN_CUT_EACH ? "true" : "false", plan_at(i)->what);
    }
    exit(0);
}

static const char *policy_named(const char *name)
{
    for (uint32_t i = 0; chm_policy_name(i); i++) {
        if (strcmp(chm_policy_name(i), name) == 0) {
            return name;
        }
    }
    usage("no such policy: ", name);
}

static void set_option(struct sweep *s, int option, char *value)
{
    uint64_t number = value ? strtoull(value, NULL, 10) : 0;

    switch (option) {
    case 'f':
        s->from = number;
        break;
    case 'n':
        s->count = number;
        break;
    case 'o':
        s->c.ops = (uint32_t)chm_min(number, OPS_MAX);
        break;
    case 'k':
        s->c.cut = number;
        break;
    case 'm':
        set_media(s, value);
        break;
    case 'y':
        s->c.policy = policy_named(value);
        break;
    case 'd':
        s->c.folder = value;
        break;
    case 'v':
        s->c.verbose = true;
        break;
    case 's':
        s->script = true;
        break;
    case 'l':
        list_plans();
        break;
    case 'O':
        set_list(value, s->skip_op, OPS_MAX);
        s->c.skip_op = s->skip_op;
        break;
    case 'F':
        set_list(value, s->skip_fault, LINES_MAX);
        s->c.skip_fault = s->skip_fault;
        break;
    case 'p':
        s->c.plan = plan_find(value);
        if (!s->c.plan) {
            usage("no such plan: ", value);
        }
        break;
    default:
        usage("see the top of tests/explore/main.c", NULL);
    }
}

static void parse(struct sweep *s, int argc, char **argv)
{
    static const struct option options[] = {
        {"from", 1, NULL, 'f'},   {"count", 1, NULL, 'n'},    {"ops", 1, NULL, 'o'},
        {"cut", 1, NULL, 'k'},    {"media", 1, NULL, 'm'},    {"policy", 1, NULL, 'y'},
        {"folder", 1, NULL, 'd'}, {"verbose", 0, NULL, 'v'},  {"script", 0, NULL, 's'},
        {"plans", 0, NULL, 'l'},  {"skip-ops", 1, NULL, 'O'}, {"skip-faults", 1, NULL, 'F'},
        {"plan", 1, NULL, 'p'},   {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        set_option(s, option, optarg);
    }
    if (optind < argc) {
        usage("what is ", argv[optind]);
    }
}

int main(int argc, char **argv)
{
    static struct sweep s = {.from = 1,
                             .count = 1,
                             .media = {"sim"},
                             .nmedia = 1,
                             .c = {.ops = 120, .policy = "window", .folder = "."}};
    char script[LINES_MAX * 40];
    struct run *r;

    s.c.plan = plan_at(0);
    parse(&s, argc, argv); /* may end the program: nothing is allocated before */
    r = calloc(1, sizeof(*r));
    CHM_ASSERT(r);
    running = r;
    watch();
    mallopt(M_MMAP_THRESHOLD, 64 * MIB); /* a device is opened thousands of times: */
    mallopt(M_TRIM_THRESHOLD, 64 * MIB); /* its tables need no fresh pages each time */
    if (s.script) {
        s.c.seed = s.from;
        plan_script(&s.c, script, sizeof(script));
        printf("%s", script);
        return 0;
    }
    for (uint64_t i = 0; i < s.count; i++) {
        s.c.seed = s.from + i;
        run_seed(&s, r);
    }
    printf("{\"seeds\": %" PRIu64 ", \"runs\": %" PRIu64 ", \"writes\": %" PRIu64
           ", \"cuts\": %" PRIu64 ", \"skipped\": %" PRIu64 ", \"digest\": \"%016" PRIx64 "\"}\n",
           s.count, s.runs, s.writes, s.cuts, s.skipped, s.digest);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_corpus.c - the inputs that fuzzing found worth keeping, without a fuzzer: each is run once.
 *
 * They lie in corpus/TARGET beside this file. More of them: tools/fuzz. Field reports: F43
 * (recovery always ends), F46, F98 (damaged metadata never gives wrong bytes).
 */
#include <dirent.h>

#include "fuzz/fuzz.h"

enum { INPUT_MAX = 4096 };

static const struct {
    const char *name;
    uint32_t target;
} TARGETS[] = {
    {"super", FUZZ_SUPER}, {"journal", FUZZ_JOURNAL}, {"index", FUZZ_INDEX},
    {"names", FUZZ_NAMES}, {"object", FUZZ_OBJECT},
};

static void path_of(char *path, const char *target, const char *name)
{
    const char *here = __FILE__, *slash = strrchr(here, '/');

    CHECK(slash);
    CHECK(snprintf(path, RIG_PATH_MAX, "%.*s/corpus/%s/%s", (int)(slash - here), here, target,
                   name) < RIG_PATH_MAX);
}

static void run_file(struct fuzz *f, uint32_t target, const char *path)
{
    uint8_t data[INPUT_MAX];
    FILE *file = fopen(path, "rb");
    size_t n;

    CHECK(file);
    n = fread(data, 1, sizeof(data), file);
    fclose(file);
    fprintf(stderr, "%s\n", path); /* shown if it fails */
    fuzz_run(f, target, data, n);
}

static void run_target(const char *name, uint32_t target)
{
    static struct fuzz f;
    char path[RIG_PATH_MAX];
    struct dirent *e;
    DIR *dir;

    path_of(path, name, "");
    dir = opendir(path);
    CHECK(dir);
    fuzz_begin(&f, target);
    fuzz_run(&f, target, NULL, 0); /* nothing is damaged */
    CHECK(f.found > 30);
    while ((e = readdir(dir))) {
        if (e->d_name[0] != '.') {
            path_of(path, name, e->d_name);
            run_file(&f, target, path);
        }
    }
    closedir(dir);
    CHECK(f.runs > 10 && f.opened > 5);
    printf("%s: %" PRIu64 " inputs, %" PRIu64 " could be opened, %" PRIu64 " objects whole\n", name,
           f.runs, f.opened, f.found);
    fuzz_end(&f);
}

int main(void)
{
    for (size_t i = 0; i < CHM_COUNT(TARGETS); i++) {
        run_target(TARGETS[i].name, TARGETS[i].target);
    }
    return 0;
}

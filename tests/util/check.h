/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - what the C tests of this folder share: checks that say expected and got, and a test for
 * "this call aborts". */
#ifndef CHM_TESTS_UTIL_CHECK_H
#define CHM_TESTS_UTIL_CHECK_H

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s: does not hold: %s\n", __FILE__, __LINE__, __func__,        \
                    #cond);                                                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_EQ(got, expected)                                                                    \
    do {                                                                                           \
        uint64_t got_ = (uint64_t)(got), expected_ = (uint64_t)(expected);                         \
        if (got_ != expected_) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s: expected %" PRIu64 ", got %" PRIu64 "\n", __FILE__,    \
                    __LINE__, __func__, #got, expected_, got_);                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Run fn in a child and check that it ends with SIGABRT, as a broken invariant does. */
static inline void check_aborts(void (*fn)(void))
{
    int status = 0;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO); /* the message is expected: hide it */
        fn();
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(WTERMSIG(status), SIGABRT);
}

#endif

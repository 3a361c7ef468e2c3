/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seccomp.h - lets the kernel itself refuse system calls, as container sandboxes do. For good: call
 * it in a child.
 */
#ifndef CHM_TESTS_MEDIA_SECCOMP_H
#define CHM_TESTS_MEDIA_SECCOMP_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "util/check.h"

enum { ANY_ARGUMENT = -1 };

/* Answer `code` to system call `number`, if its second argument is `second` (or any). */
static inline void refuse_call(long number, int second, int code)
{
    uint8_t skip = second == ANY_ARGUMENT ? 0 : 2;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, (uint8_t)(skip + 1)),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)second, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)code),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_filter any[] = {filter[0], filter[1], filter[4], filter[5]};
    struct sock_fprog program = {
        .len = (unsigned short)(skip ? 6 : 4),
        .filter = skip ? filter : any,
    };

    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), 0);
}

/* Run fn in a child, so that what is refused there is not refused here. */
static inline void in_child(void (*fn)(int code), int code)
{
    int status = 0;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        fn(code);
        exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

#endif

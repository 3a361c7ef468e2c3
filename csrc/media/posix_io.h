/* SPDX-License-Identifier: Apache-2.0 */
/* posix_io.h - one I/O carried out by plain system calls; for the sync and threads media. */
#ifndef CHM_POSIX_IO_H
#define CHM_POSIX_IO_H

#include <stdatomic.h>
#include <stdbool.h>

#include "media/medium.h"

struct chm_posix {
    int fd[CHM_MEMBERS_MAX];
    /* The member cannot zero a range and keep its blocks: punch a hole instead. */
    _Atomic bool punch[CHM_MEMBERS_MAX];
};

void chm_posix_init(struct chm_posix *p, const struct chm_media_args *args);
/* Carry out an I/O that passed chm_io_check. Returns what becomes its res. Any thread. */
int32_t chm_posix_run(struct chm_posix *p, const struct chm_io *io);

#endif

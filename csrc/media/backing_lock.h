/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backing_lock.h - the header page of a member and the lock on it; private to the backing files.
 */
#ifndef CHM_BACKING_LOCK_H
#define CHM_BACKING_LOCK_H

#include <stddef.h>

#include "media/backing.h"

/* Lock a member that was opened and probed, and say so in its header page (if that is one of ours).
 * -EBUSY: err names the owner as far as it is known. */
int chm_backing_lock(const struct chm_backing *b, const char *path, struct chm_error *err);
void chm_backing_unlock(const struct chm_backing *b);

#endif

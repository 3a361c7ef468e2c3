/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deliver.h - bytes on their way over the host link.
 *
 * A demand read leaves for the host when its bytes are on the device; a staged object when somebody
 * waits for it, since until then the host does not fetch it. Either crosses the link once, however
 * often it is waited for. Without a link all of this takes no time.
 */
#ifndef CHM_DELIVER_H
#define CHM_DELIVER_H

#include "host/door.h"

/* The cell has its bytes: send them off unless they are on their way. When they arrive, on the
 * device's clock; 1 without a link. Any thread. */
uint64_t chm_deliver_begin(struct chm_dev *dev, struct chm_cell *cell);
/* Wait for the arrival. 0, -ETIMEDOUT, -EINTR, -ENODEV. */
int chm_deliver(struct chm_dev *dev, struct chm_cell *cell, uint64_t deadline_ns);

#endif

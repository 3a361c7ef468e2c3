/* SPDX-License-Identifier: Apache-2.0 */
/* request.h - life of a staging or reading request, from command to result to release. States:
 * device.h. */
#ifndef CHM_REQUEST_H
#define CHM_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

struct chm_fw;
struct chm_fwreq;
struct chm_timer;

/* A fresh ISSUE: find or make its slot now, or put it to the queue or to a timer. */
void chm_request_issue(struct chm_fw *fw, struct chm_fwreq *req);
/* A fresh READ. */
void chm_request_read(struct chm_fw *fw, struct chm_fwreq *req);
/* A READ has begun; bytes there from the front; its end: 0 or -errno. For device caches. */
void chm_request_read_begun(struct chm_fw *fw, struct chm_fwreq *req);
void chm_request_read_moved(struct chm_fw *fw, struct chm_fwreq *req, uint64_t front);
void chm_request_read_done(struct chm_fw *fw, struct chm_fwreq *req, int32_t err);
/* The window's: a READ was given up. */
bool chm_request_read_cancel(struct chm_fw *fw, struct chm_fwreq *req);
/* A fresh RESERVE. */
void chm_request_reserve(struct chm_fw *fw, struct chm_fwreq *req);
/* The client gave the handle up, whatever state it is in. */
void chm_request_release(struct chm_fw *fw, struct chm_fwreq *req);
/* Its timer fired. */
void chm_request_timer(struct chm_fw *fw, struct chm_timer *timer);
/* Window space came free: serve the queue, in order. */
void chm_request_serve_queue(struct chm_fw *fw);
/* End quiesce requests if nothing is in flight for released ones. */
void chm_request_check_quiesce(struct chm_fw *fw);
/* Cell of a request. */
uint32_t chm_request_cell(const struct chm_fw *fw, const struct chm_fwreq *req);

#endif

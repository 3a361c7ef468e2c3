/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - starting a thread of the library. */
#ifndef CHM_THREAD_H
#define CHM_THREAD_H

#include <pthread.h>

/* pthread_create with all signals blocked in the new thread: they are the program's, and one that
 * ended up there would not interrupt a caller's wait. 0 or -errno. */
int chm_thread_create(pthread_t *thread, void *(*run)(void *), void *arg);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c - see thread.h. */
#include "media/thread.h"

#include <signal.h>

int chm_thread_create(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -rc;
}

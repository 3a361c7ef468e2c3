/* SPDX-License-Identifier: Apache-2.0 */
/* test_thread.c - threads of the library leave signals to the program. */
#include <signal.h>

#include "../util/check.h"
#include "media/thread.h"

static void *note_mask(void *arg)
{
    pthread_sigmask(SIG_SETMASK, NULL, arg);
    return NULL;
}

int main(void)
{
    sigset_t before, inside, after;
    pthread_t thread;

    sigemptyset(&before);
    sigaddset(&before, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    CHECK_EQ(chm_thread_create(&thread, note_mask, &inside), 0);
    pthread_join(thread, NULL);
    CHECK(sigismember(&inside, SIGINT) == 1);
    CHECK(sigismember(&inside, SIGTERM) == 1);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    CHECK(sigismember(&after, SIGUSR1) == 1); /* the caller's own mask is as it was */
    CHECK(sigismember(&after, SIGINT) == 0);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_journal.c - libFuzzer on the journal (tools/fuzz). */
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz f;

    if (!f.buf) {
        fuzz_begin(&f, FUZZ_JOURNAL);
    }
    fuzz_run(&f, FUZZ_JOURNAL, data, size);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_index.c - libFuzzer on index and order pages (tools/fuzz). */
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz f;

    if (!f.buf) {
        fuzz_begin(&f, FUZZ_INDEX);
    }
    fuzz_run(&f, FUZZ_INDEX, data, size);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_object.c - libFuzzer on object headers and payload (tools/fuzz). */
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz f;

    if (!f.buf) {
        fuzz_begin(&f, FUZZ_OBJECT);
    }
    fuzz_run(&f, FUZZ_OBJECT, data, size);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* gb_fixture_read of any bytes. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct gb_fixture *fixture;
    struct gb_error error;
    gb_hdf5_no_atexit();
    enum gb_status status = gb_fixture_read(fuzz_file(0, bytes, count), &fixture, &error);
    fuzz_check(status, &error);
    gb_fixture_free(fixture);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* gb_fixture_read of any bytes. */
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

/* Where the good file is refused, no input would be read far. */
static void read_good(void)
{
    static bool done;
    struct gb_fixture *fixture;
    struct gb_error error;
    size_t count;
    const uint8_t *bytes = fuzz_good_file(&count);
    if (!done && gb_fixture_read(fuzz_file(0, bytes, count), &fixture, &error) != GB_OK)
        abort();
    if (!done)
        gb_fixture_free(fixture);
    done = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct gb_fixture *fixture;
    struct gb_error error;
    gb_hdf5_no_atexit();
    read_good();
    enum gb_status status = gb_fixture_read(fuzz_file(0, bytes, count), &fixture, &error);
    fuzz_check(status, &error);
    fuzz_nothing(status == GB_OK ? NULL : fixture);
    fuzz_touch_fixture(fixture);
    gb_fixture_free(fixture);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* gb_fixture_read of well-formed HDF5 files: the input is a list of edits to a good fixture. */
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

static const char *const objects[] = {
    "/",
    "/layers",
    "/layers/0",
    "/layers/0/x",
    "/layers/0/routing/ids",
    "/layers/0/routing/weights",
    "/layers/0/gate_up/codes",
    "/layers/0/gate_up/scales",
    "/layers/0/gate_up/global_scales",
    "/layers/0/down/codes",
    "/layers/0/down/scales",
    "/layers/0/down/global_scales",
    "/layers/0/router/weight",
    "/layers/0/norm/weight",
    "/layers/0/truth/routing_weights",
    "/layers/0/truth/quantised",
    "/layers/0/truth/original",
    "/layers/1",
    "/stack",
    "/stack/residual",
    "/stack/attention_delta",
    "/stack/truth/quantised",
    "/stack/truth/original",
};
static const char *const attributes[] = {
    "schema",
    "schema_version",
    "kind",
    "byte_order",
    "activations",
    "weights",
    "recipe",
    "contract",
    "source",
    "source_sha256",
    "input_sha256",
    "layers",
    "tokens",
    "hidden",
    "experts",
    "top_k",
    "seed",
    "generator",
    "renormalise",
    "intermediate",
    "index",
    "nonfinite",
    "rms_norm_epsilon",
    "format",
    "layout",
};
static const struct fuzz_names names = {objects, sizeof objects / sizeof *objects, attributes,
                                        sizeof attributes / sizeof *attributes};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct gb_fixture *fixture;
    struct gb_error error;
    gb_hdf5_no_atexit();
    size_t size;
    const uint8_t *good = fuzz_good_file(&size);
    const char *path = fuzz_file(0, good, size);
    fuzz_edit(path, &names, bytes, count);
    enum gb_status status = gb_fixture_read(path, &fixture, &error);
    fuzz_check(status, &error);
    fuzz_nothing(status == GB_OK ? NULL : fixture);
    fuzz_touch_fixture(fixture);
    if (count == 0 && status != GB_OK)
        abort(); /* not edited */
    gb_fixture_free(fixture);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* gaugeblock.h alone, as strict C11. Only the compiler is needed to find it valid; test_header.cpp runs the rest. */
#include "gaugeblock.h"

#include "tests/test_header.h"

static const size_t layout[] = LAYOUT;

const size_t *header_layout_in_c(size_t *count)
{
    *count = sizeof layout / sizeof *layout;
    return layout;
}

static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    (void)error;
    return problem->weights == GB_NVFP4 ? GB_OK : GB_EUNSUPPORTED;
}

static enum gb_status run(const struct gb_arguments *arguments, struct gb_error *error)
{
    (void)error;
    ((float *)arguments->output)[0] = (float)arguments->shape.tokens;
    return GB_OK;
}

const struct gb_kernel_table *header_table_in_c(void)
{
    static const struct gb_kernel kernel = {.name = "header/c",
                                            .operation = GB_LAYER,
                                            .weights = GB_NVFP4,
                                            .activations = GB_BF16,
                                            .output = GB_FP32,
                                            .accumulator_bits = 24,
                                            .supports = supports,
                                            .run = run};
    static const struct gb_kernel_table table = {GB_ABI_VERSION, sizeof(struct gb_kernel), 1, &kernel};
    return &table;
}

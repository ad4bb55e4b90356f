/* SPDX-License-Identifier: Apache-2.0 */
/* gaugeblock.h alone, as strict C++17: the same layout as in C, and a kernel of a C library called from C++. */
#include "gaugeblock.h"

#include "tests/test_header.h"

#include <cstdio>
#include <type_traits>

static const size_t layout[] = LAYOUT;

static_assert(std::is_same<gb_kernels_function, decltype(&header_table_in_c)>::value, "the exported function's type");
static_assert(sizeof(gb_e2m1) == 1 && sizeof(gb_bf16) == 2, "codes have the size of their bits");

static int fail(const char *what, size_t index)
{
    std::fprintf(stderr, "test_header: %s %zu\n", what, index);
    return 1;
}

int main()
{
    size_t count = 0;
    const size_t *layout_in_c = header_layout_in_c(&count);
    if (count != sizeof layout / sizeof *layout)
        return fail("number of layouts", count);
    for (size_t i = 0; i < count; i++)
        if (layout[i] != layout_in_c[i])
            return fail("C and C++ disagree on layout", i);

    gb_kernels_function kernels = header_table_in_c;
    const gb_kernel &kernel = kernels()->kernels[0];
    gb_problem problem = {sizeof problem, {7, 16, 16, 1, 1}, GB_BF16, nullptr, GB_SILU, 0,
                          nullptr,        nullptr,           0,       nullptr};
    if (kernel.supports(&problem, nullptr) != GB_EUNSUPPORTED)
        return fail("supports", 0);
    float output = 0;
    gb_arguments arguments = {};
    arguments.size = sizeof arguments;
    arguments.shape = problem.shape;
    arguments.output = &output;
    if (kernel.run(&arguments, nullptr) != GB_OK || output != 7 || kernel.order)
        return fail("run", 0);
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Included before SGLang's moe_wna16_marlin.cuh, whose table names 182 kernels, 12 of them for MXFP4. The function that
// holds the table is renamed; as nobody calls it, it is never instantiated. Its name goes to one that holds the rows of
// MXFP4 alone. Calls stay as they are: there a "<" follows the name.

#define get_marlin_kernel(...)                                                                                         \
    get_marlin_kernel(__VA_ARGS__)                                                                                     \
    {                                                                                                                  \
        auto kernel = MarlinDefault;                                                                                   \
        if (false) {                                                                                                   \
        }                                                                                                              \
        MXFP4_GET_IF(host::kFE2M1f)                                                                                    \
        return kernel;                                                                                                 \
    }                                                                                                                  \
    template <typename scalar_t, bool kIsEP, bool kHasBias, bool kExpertIdsAreSorted, bool kZeroInactiveOutput,        \
              bool kHasInactivePrefixCount>                                                                            \
    MarlinFuncPtr get_marlin_kernel_of_any_format(__VA_ARGS__)

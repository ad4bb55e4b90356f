/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of the ABI's structs, to be the same numbers from a C and a C++ compiler. */
#ifndef GB_TESTS_TEST_HEADER_H
#define GB_TESTS_TEST_HEADER_H

#define LAYOUT                                                                                                         \
    {                                                                                                                  \
        sizeof(enum gb_status), sizeof(struct gb_error), sizeof(gb_e2m1), sizeof(gb_e2m1x2), sizeof(gb_e4m3),          \
            sizeof(gb_bf16), sizeof(struct gb_shape), sizeof(struct gb_weights), sizeof(struct gb_problem),            \
            sizeof(struct gb_arguments), sizeof(struct gb_kernel), sizeof(struct gb_kernel_table),                     \
            sizeof(struct gb_device), offsetof(struct gb_weights, codes), offsetof(struct gb_arguments, gate_up),      \
            offsetof(struct gb_arguments, stream), offsetof(struct gb_arguments, routed_weights),                      \
            offsetof(struct gb_router, masked), sizeof(struct gb_router), offsetof(struct gb_problem, router),         \
            sizeof(struct gb_quantisation), offsetof(struct gb_quantisation, layout),                                  \
            offsetof(struct gb_arguments, scales), offsetof(struct gb_problem, quantise), sizeof(struct gb_exchange),  \
            offsetof(struct gb_exchange, input), offsetof(struct gb_exchange, rendezvous),                             \
            offsetof(struct gb_arguments, routes), offsetof(struct gb_kernel, order), offsetof(struct gb_kernel, run), \
            offsetof(struct gb_kernel_table, kernels), offsetof(struct gb_device, synchronise)                         \
    }

#ifdef __cplusplus
extern "C" {
#endif
/* [*count], as C sees it. */
const size_t *header_layout_in_c(size_t *count);
/* A table and a kernel's run function, as a subject library exports them. */
const struct gb_kernel_table *header_table_in_c(void);
#ifdef __cplusplus
}
#endif
#endif

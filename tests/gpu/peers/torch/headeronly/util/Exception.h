/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for PyTorch's header of this name, of which vLLM's scalar_type.hpp needs one check. */
#ifndef GB_TESTS_GPU_PEERS_TORCH_EXCEPTION_H
#define GB_TESTS_GPU_PEERS_TORCH_EXCEPTION_H

#include <cstdlib>

#define STD_TORCH_CHECK(condition, ...) ((condition) ? (void)0 : abort())

#endif

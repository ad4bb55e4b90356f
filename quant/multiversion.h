/* SPDX-License-Identifier: Apache-2.0 */
/* Private: a function compiled for several CPUs, of which the program takes the best at its start. */
#ifndef GB_QUANT_MULTIVERSION_H
#define GB_QUANT_MULTIVERSION_H

/* Not with the sanitizer, whose run time is not up when the choice is made. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define GB_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define GB_VECTOR_CLONES
#endif

#endif

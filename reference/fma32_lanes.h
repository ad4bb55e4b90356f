/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private: the order fma32/1 on vector registers; docs/numerics.md#fma32 numbers its steps.
 *
 * A team is as many consecutive chunks of a row as a register has lanes: 16 (AVX-512) or 8 (AVX2), and a register holds
 * one number of each. The teams of a row take turns on 32 / 16 or 32 / 8 accumulator registers (step 2).
 *
 * In memory a chunk's 16 bytes lie together; for a step of step 3 the same bytes of all chunks must. Four registers of
 * codes are transposed as 4 x 4 dwords, in every 16-byte part on its own. With 16 lanes, chunk c's dword d as c.d:
 *
 *     z0 =  0.0  0.1  0.2  0.3 |  1.0 ...  |  2.0 ...  |  3.0 ...          dword 0:  0.0  4.0  8.0 12.0 |  1.0  5.0 ...
 *     z1 =  4.0  4.1  4.2  4.3 |  5.0 ...  |  6.0 ...  |  7.0 ...    ->    dword 1:  0.1  4.1  8.1 12.1 |  1.1  5.1 ...
 *     z2 =  8.0  8.1  8.2  8.3 |  9.0 ...  | 10.0 ...  | 11.0 ...          dword 2:  0.2  4.2  8.2 12.2 |  1.2  5.2 ...
 *     z3 = 12.0 12.1 12.2 12.3 | 13.0 ...  | 14.0 ...  | 15.0 ...          dword 3:  0.3  4.3  8.3 12.3 |  1.3  5.3 ...
 *
 * so position 4q + r of a register belongs to chunk r * lanes / 4 + q of the team. Activations and scales are brought
 * into the same positions.
 *
 * What does not exist must not count. Its code is read as +0 and its x is -0: fma(+0, -0, p) = p for every p, -0
 * included. A run that does not exist has p = +0 and the scale -0: fma(-0, +0, acc) = acc for every acc.
 */
#ifndef GB_REFERENCE_FMA32_LANES_H
#define GB_REFERENCE_FMA32_LANES_H

#include <stddef.h>
#include <stdint.h>

#include "gaugeblock.h"

enum { GB_LANES = 32, GB_CHUNK_BYTES = 16 };

/* Consecutive rows of one expert, against several activations. */
struct gb_tile {
    enum gb_format format; /* GB_NVFP4, GB_MXFP8 or GB_BF16 */
    uint32_t rows;
    uint32_t count;
    size_t code_bytes;          /* of one row */
    size_t scale_bytes;         /* of one row */
    const uint8_t *codes;       /* [rows, code_bytes] */
    const uint8_t *scales;      /* [rows, scale_bytes] */
    const uint8_t *next_codes;  /* NULL, or what the caller will read afterwards */
    const uint8_t *next_scales; /* likewise */
    const float *const *x;      /* [count], each [teams, elements of a chunk, lanes of a team], 64-byte aligned */
};

/* dots[r * count + i] = row r . x[i], steps 1 to 4 of fma32/1 (without the global scale). dots: [rows, count]. */
void gb_dots_avx2(const struct gb_tile *tile, float *dots);
void gb_dots_avx512(const struct gb_tile *tile, float *dots);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/explain/element_from.h"

size_t element_from(const struct finding *f, size_t width, size_t i)
{
    size_t from = i, a = (size_t)f->offset, b = (size_t)f->columns, tile = a * b;
    if (f->effect == FINDING_ELEMENT)
        from = (size_t)((((int64_t)i + f->offset) % (int64_t)width + (int64_t)width) % (int64_t)width);
    else if (f->effect == FINDING_XOR)
        from = i ^ a;
    else if (f->effect == FINDING_REVERSE)
        from = width - 1 - i;
    else if (f->effect == FINDING_SHARED)
        from = i & ~a;
    else if (f->effect == FINDING_TILED)
        from = i / tile * tile + i % tile % b * a + i % tile / b;
    return from < width ? from : i;
}

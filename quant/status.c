/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>

#include "quant/quant.h"

const char *gb_status_name(enum gb_status status)
{
    switch (status) {
    case GB_OK:
        return "GB_OK";
    case GB_EINVAL:
        return "GB_EINVAL";
    case GB_ENOMEM:
        return "GB_ENOMEM";
    case GB_EIO:
        return "GB_EIO";
    case GB_EFORMAT:
        return "GB_EFORMAT";
    case GB_EUNSUPPORTED:
        return "GB_EUNSUPPORTED";
    case GB_EDEVICE:
        return "GB_EDEVICE";
    }
    return "unknown status";
}

enum gb_status gb_fail(struct gb_error *error, enum gb_status status, const char *format, ...)
{
    if (error) {
        va_list list;
        va_start(list, format);
        vsnprintf(error->message, sizeof error->message, format, list);
        va_end(list);
        for (char *c = error->message; *c; c++) /* it may quote a file: one line all the same */
            if ((unsigned char)*c < ' ' || *c == 0x7f)
                *c = '?';
    }
    return status;
}

bool gb_bytes(uint64_t a, uint64_t b, uint64_t c, uint64_t size, size_t *bytes)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product) ||
        __builtin_mul_overflow(product, size, &product) || product > SIZE_MAX / 2)
        return false;
    *bytes = (size_t)product;
    return true;
}

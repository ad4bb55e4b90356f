/* SPDX-License-Identifier: Apache-2.0 */
#include <fenv.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "harness/run/environment.h"

/* By what arithmetic does, so that every processor's control bits are seen. */
static unsigned changes(void)
{
    volatile float least_normal = FLT_MIN, least = FLT_TRUE_MIN, large = 0x1p30f;
    volatile long double one = 1.0L, epsilon = LDBL_EPSILON;
    unsigned what = fegetexcept() ? ENVIRONMENT_TRAPS : 0;
    what |= fegetround() == FE_TONEAREST ? 0 : ENVIRONMENT_ROUNDING;
    feholdexcept(&(fenv_t){0}); /* no trap below */
    fesetround(FE_TONEAREST);
    volatile float half = least_normal * 0.5f, scaled = least * large;
    volatile long double above = one + epsilon;
    what |= half == 0.0f || scaled == 0.0f ? ENVIRONMENT_SUBNORMALS : 0;
    what |= above == one ? ENVIRONMENT_PRECISION : 0;
    return what;
}

unsigned environment_reset(void)
{
    unsigned what = changes();
    fesetenv(FE_DFL_ENV);
    return what;
}

void environment_reset_threads(void)
{
#pragma omp parallel
    environment_reset();
}

/* "the rounding mode and the flushing of subnormals" */
static void list(unsigned what, char *text, size_t bytes)
{
    static const struct {
        enum environment_change change;
        const char *name;
    } names[] = {{ENVIRONMENT_ROUNDING, "the rounding mode"},
                 {ENVIRONMENT_SUBNORMALS, "the flushing of subnormals"},
                 {ENVIRONMENT_PRECISION, "the precision of the x87"},
                 {ENVIRONMENT_TRAPS, "the floating-point traps"}};
    text[0] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (what & names[i].change) {
            size_t length = strlen(text);
            snprintf(text + length, bytes - length, "%s%s", length ? " and " : "", names[i].name);
        }
}

void environment_describe(unsigned loading, unsigned calls, char *text, size_t bytes)
{
    char at_load[128], in_calls[128];
    list(loading, at_load, sizeof at_load);
    list(calls, in_calls, sizeof in_calls);
    text[0] = '\0';
    if (at_load[0])
        snprintf(text, bytes, "loading the library changed %s", at_load);
    if (in_calls[0]) {
        size_t length = strlen(text);
        snprintf(text + length, bytes - length, "%sthe kernel's functions changed %s", length ? "; " : "", in_calls);
    }
    if (text[0])
        snprintf(text + strlen(text), bytes - strlen(text), "; reset before each call");
}

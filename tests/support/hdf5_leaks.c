/* SPDX-License-Identifier: Apache-2.0 */
/* For tests that read damaged files under LeakSanitizer. */
#include "gaugeblock.h"

/* libhdf5 1.10 leaks where it finds a damaged object. The sanitiser finds the function only if it is visible. */
GB_API const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

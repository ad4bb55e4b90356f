/* SPDX-License-Identifier: Apache-2.0 */
/* policy_read of any bytes; what it takes, written down by policy_json, is the same gate. */
#include <stdlib.h>
#include <string.h>

#include "harness/judge/policy.h"
#include "tests/fuzz/fuzz.h"

static void check_line(const struct gb_error *error)
{
    if (!strstr(error->message, fuzz_folder()))
        abort();
    for (const char *c = error->message; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7F)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct policy gate, again;
    struct gb_error error;
    enum gb_status status = policy_read(fuzz_file(0, bytes, count), &gate, &error);
    if (status != GB_OK) {
        check_line(&error);
        return 0;
    }
    json_t *first = policy_json(&gate);
    char *text = json_dumps(first, 0);
    if (!text || policy_read(fuzz_file(1, (const uint8_t *)text, strlen(text)), &again, &error) != GB_OK)
        abort();
    json_t *second = policy_json(&again);
    if (!json_equal(first, second))
        abort();
    free(text);
    json_decref(first);
    json_decref(second);
    return 0;
}

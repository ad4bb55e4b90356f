/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/damaged_fixture.h"

#include <fcntl.h>
#include <unistd.h>

#include "tests/support/kept_explanation.h"

char damaged_folder[] = "/tmp/gaugeblock-damage-XXXXXX";
char damaged_good[64], damaged_bad[64];
struct gb_fixture *damaged_content;

void damaged_copy(void)
{
    char bytes[1 << 16];
    int from = open(damaged_good, O_RDONLY), to = open(damaged_bad, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ssize_t count;
    while ((count = read(from, bytes, sizeof bytes)) > 0)
        assert_int_equal(write(to, bytes, (size_t)count), count);
    close(from);
    close(to);
}

void damaged_expect_refusal(const char *field, const char *what)
{
    struct gb_fixture *f;
    struct gb_error error = {""};
    enum gb_status status = gb_fixture_read(damaged_bad, &f, &error);
    if (status != GB_EFORMAT)
        fail_msg("%s, %s: got %s", field, what, gb_status_name(status));
    assert_null(f);
    if (strncmp(error.message, damaged_bad, strlen(damaged_bad)) || !strstr(error.message, field) ||
        !strstr(error.message, what) || strchr(error.message, '\n'))
        fail_msg("'%s' does not say '%s' and '%s'", error.message, field, what);
    kept_message(error.message, damaged_folder);
}

int damaged_set_up(void **state)
{
    (void)state;
    struct gb_error error;
    assert_non_null(mkdtemp(damaged_folder));
    snprintf(damaged_good, sizeof damaged_good, "%s/good.h5", damaged_folder);
    snprintf(damaged_bad, sizeof damaged_bad, "%s/bad.h5", damaged_folder);
    damaged_content = new_fixture(GB_NVFP4, true, true, true);
    assert_int_equal(gb_fixture_write(damaged_good, damaged_content, &error), GB_OK);
    return 0;
}

int damaged_tear_down(void **state)
{
    (void)state;
    gb_fixture_free(damaged_content);
    unlink(damaged_good);
    unlink(damaged_bad);
    return rmdir(damaged_folder);
}

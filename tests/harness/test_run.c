/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of harness/run by themselves: guarded memory, files to write, words, verdicts, children. */
#define _GNU_SOURCE
#include "tests/support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <glob.h>
#include <omp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "harness/judge/policy.h"
#include "harness/run/child.h"
#include "harness/run/compute_truth.h"
#include "harness/run/declared_precision.h"
#include "harness/run/environment.h"
#include "harness/run/guarded.h"
#include "harness/run/host_timer.h"
#include "harness/run/json_text.h"
#include "harness/run/library.h"
#include "harness/run/match_kernels.h"
#include "harness/run/output_guard.h"
#include "harness/run/processes.h"
#include "harness/run/clock.h"
#include "harness/run/session_arrays.h"
#include "harness/run/table_wire.h"
#include "harness/run/task_pieces.h"
#include "harness/run/text.h"
#include "harness/run/verdict.h"
#include "harness/run/worker.h"
#include "harness/run/written.h"

static char folder[] = "/tmp/gaugeblock-test-run-XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[8][256];
    static unsigned turn;
    char *text = path[turn++ % 8];
    snprintf(text, sizeof *path, "%s/%s", folder, name);
    return text;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void expect_text(const char *path, const char *right)
{
    char text[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    (void)!fread(text, 1, sizeof text - 1, file);
    fclose(file);
    assert_string_equal(text, right);
}

static enum gb_status copy(void *to, const void *from, size_t bytes, struct gb_error *error)
{
    (void)error;
    memcpy(to, from, bytes);
    return GB_OK;
}

/* As the harness has it: what is released by free is the host's. */
static const struct gb_device *host(void)
{
    static const struct gb_device memory = {.release = free, .upload = copy, .download = copy};
    return &memory;
}

static bool is_readable(const char *byte)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    bool readable = write(ends[1], byte, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return readable;
}

/* Memory that is large enough to be shared until it is written to: every byte is fresh, and one's own. */
static void test_large_memory_is_fresh(void **state)
{
    (void)state;
    static const size_t sizes[] = {(1 << 26) - (1 << 14), (1 << 26) + 4097 * 3};
    struct gb_error error;
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        struct guarded b;
        bool intact;
        assert_int_equal(guarded_new(host(), sizes[n], GUARDED_END, 0, &b, &error), GB_OK);
        assert_true(b.bytes == sizes[n] && b.left == 16384 && b.right == (256 - sizes[n] % 256) % 256 && !b.kept);
        assert_true((uintptr_t)b.payload % 256 == 0);
        const char *payload = b.payload, *end = payload + b.bytes + b.right;
        assert_true(end == b.region + b.mapped && !is_readable(end) && !is_readable(b.region - 1));
        assert_true(is_readable(end - 1) && is_readable(b.region));
        for (const char *at = b.region; at < b.base; at++)
            assert_int_equal(*at, GUARDED_FRESH);
        char *fresh = malloc(b.bytes);
        assert_non_null(fresh);
        memset(fresh, GUARDED_FRESH, b.bytes);
        assert_true(memcmp(payload, fresh, b.bytes) == 0);
        ((char *)b.payload)[5 << 20] = 1; /* in the second piece: others have memory of their own */
        fresh[5 << 20] = 1;
        assert_true(memcmp(payload, fresh, b.bytes) == 0);
        assert_int_equal(guarded_intact(&b, &intact, &error), GB_OK);
        assert_true(intact);
        b.base[b.left - 1] ^= 1;
        assert_int_equal(guarded_intact(&b, &intact, &error), GB_OK);
        assert_false(intact);
        free(fresh);
        const char *region = b.region;
        guarded_free(&b);
        assert_true(!is_readable(region) && !b.bytes && !b.payload);
    }
}

/* Also where the first file that is open has enough bytes to be memory. */
static void test_large_memory_is_no_file(void **state)
{
    FILE *file = tmpfile();
    int input = dup(STDIN_FILENO);
    assert_true(file && input >= 0 && ftruncate(fileno(file), 1 << 27) == 0);
    assert_int_equal(dup2(fileno(file), STDIN_FILENO), STDIN_FILENO);
    test_large_memory_is_fresh(state);
    assert_int_equal(dup2(input, STDIN_FILENO), STDIN_FILENO);
    close(input);
    fclose(file);
}

/* Canaries are NaN wherever they are read as numbers, and no two places of a period of 128 are alike. */
static void test_canaries_are_nan(void **state)
{
    (void)state;
    struct gb_error error;
    struct guarded b;
    assert_int_equal(guarded_new(host(), 300, GUARDED_START, 0, &b, &error), GB_OK);
    const uint8_t *canary = (const uint8_t *)b.payload + b.bytes;
    assert_true(b.left == 0 && b.right == 16384 && b.base == b.payload);
    for (size_t i = 0; i + 1 < b.right; i++) {
        uint8_t low = canary[i], high = canary[i + 1];
        if (i % 2 == 0)
            assert_true((high & 0x7F) == 0x7F && low & 0x80 && low & 0x7F);
        if (i + 256 < b.right)
            assert_int_equal(canary[i], canary[i + 256]);
    }
    for (size_t shift = 1; shift < 128; shift++)
        assert_true(memcmp(canary, canary + shift, 256) != 0);
    guarded_free(&b);
}

/* Those of the same slot and size lie where the last one did, which nobody can read in between. */
static void test_addresses_are_kept(void **state)
{
    (void)state;
    static const char words[] = "some words";
    struct gb_error error;
    struct guarded a, b, c, other;
    char back[sizeof words];
    bool equal;
    assert_int_equal(guarded_from(host(), words, sizeof words, GUARDED_CANARIES, 7, &a, &error), GB_OK);
    assert_int_equal(guarded_new(host(), sizeof words, GUARDED_CANARIES, 8, &other, &error), GB_OK);
    const void *first = a.payload;
    assert_true(a.left == 16384 && a.right == 16384 && a.kept && other.payload != first);
    assert_int_equal(guarded_equals(&a, 5, words + 5, 5, &equal, &error), GB_OK);
    assert_true(equal);
    assert_int_equal(guarded_equals(&a, 5, words + 4, 5, &equal, &error), GB_OK);
    assert_false(equal);
    assert_int_equal(guarded_read(&a, back, &error), GB_OK);
    assert_string_equal(back, words);
    guarded_free(&a);
    assert_false(is_readable(first));
    assert_int_equal(guarded_new(host(), sizeof words, GUARDED_CANARIES, 7, &b, &error), GB_OK);
    assert_int_equal(guarded_new(host(), sizeof words + 8192, GUARDED_CANARIES, 7, &c, &error), GB_OK);
    assert_true(b.payload == first && c.payload != first);
    for (size_t i = 0; i < sizeof words; i++)
        assert_int_equal(((const char *)b.payload)[i], GUARDED_FRESH);
    assert_int_equal(guarded_poison(&b, 0x5A, &error), GB_OK);
    for (size_t i = 0; i < sizeof words; i++)
        assert_int_equal(((const char *)b.payload)[i], 0x5A);
    guarded_free(&b);
    guarded_free(&c);
    guarded_free(&other);
    assert_int_equal(guarded_new(host(), 0, GUARDED_END, 0, &b, &error), GB_OK);
    assert_true(!b.payload && !b.region);
    assert_int_equal(guarded_new(host(), SIZE_MAX - 5, GUARDED_END, 0, &b, &error), GB_ENOMEM);
}

/* Longer than what is compared and poisoned at once. */
static void test_pieces(void **state)
{
    (void)state;
    enum { PIECE = 1 << 22, BYTES = 2 * PIECE + 777 };
    struct gb_error error;
    struct guarded b;
    bool equal;
    uint8_t *right = malloc(BYTES);
    assert_non_null(right);
    for (size_t i = 0; i < BYTES; i++)
        right[i] = (uint8_t)(i * 2654435761u >> 13);
    assert_int_equal(guarded_from(host(), right, BYTES, GUARDED_LARGE, 0, &b, &error), GB_OK);
    assert_int_equal(guarded_equals(&b, 0, right, BYTES, &equal, &error), GB_OK);
    assert_true(equal);
    static const size_t places[] = {0, PIECE - 1, PIECE, 2 * PIECE - 1, 2 * PIECE, BYTES - 1};
    for (size_t n = 0; n < sizeof places / sizeof *places; n++) {
        right[places[n]] ^= 1;
        assert_int_equal(guarded_equals(&b, 0, right, BYTES, &equal, &error), GB_OK);
        assert_false(equal);
        right[places[n]] ^= 1;
    }
    assert_int_equal(guarded_poison(&b, 0xA7, &error), GB_OK);
    memset(right, 0xA7, BYTES);
    assert_memory_equal(b.payload, right, BYTES);
    guarded_free(&b);
    free(right);
}

/* The one file that is there by such a name. */
static const char *only(const char *pattern)
{
    static char path[256];
    glob_t found;
    assert_int_equal(glob(in_folder(pattern), 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(path, sizeof path, "%s", found.gl_pathv[0]);
    globfree(&found);
    return path;
}

/* Permissions are those of a user who is not root, where root runs the test, or of root again. */
static void ask_as_another(bool another)
{
    enum { NOBODY = 65534 };
    if (geteuid() == 0)
        assert_int_equal(setreuid(another ? NOBODY : 0, (uid_t)-1), 0);
}

static void test_room_is_made(void **state)
{
    (void)state;
    struct stat about;
    write_text(in_folder("in-the-way"), "first"); /* in the place of a folder */
    output_make_room(in_folder("in-the-way/deep/record.json"));
    assert_true(stat(in_folder("in-the-way/deep"), &about) == 0 && S_ISDIR(about.st_mode));
    expect_text(only("in-the-way.??????"), "first");
    assert_int_equal(mkdir(in_folder("folder"), 0700), 0); /* in the place of the file */
    write_text(in_folder("folder/inside"), "second");
    output_make_room(in_folder("folder"));
    assert_int_not_equal(lstat(in_folder("folder"), &about), 0);
    expect_text(only("folder.*/inside"), "second");
    assert_int_equal(symlink("nowhere", in_folder("link")), 0);
    output_make_room(in_folder("link"));
    assert_int_not_equal(lstat(in_folder("link"), &about), 0);
    write_text(in_folder("file"), "third"); /* which may stay */
    output_make_room(in_folder("file"));
    expect_text(in_folder("file"), "third");
    assert_int_equal(mkdir(in_folder("closed"), 0500), 0); /* and is opened */
    ask_as_another(true);
    output_make_room(in_folder("closed/file"));
    ask_as_another(false);
    assert_int_equal(stat(in_folder("closed"), &about), 0);
    assert_int_equal(about.st_mode & 0777, 0700);
}

static void test_outputs_are_no_inputs(void **state)
{
    (void)state;
    struct gb_error error = {""};
    char other[256];
    write_text(in_folder("input"), "");
    write_text(in_folder("second"), "");
    write_text(in_folder("model.safetensors"), "");
    assert_int_equal(symlink("input", in_folder("alias")), 0);
    const char *inputs[] = {NULL, in_folder("second"), in_folder("input")};
    assert_int_equal(output_guard(in_folder("alias"), inputs, 3, &error), GB_EINVAL);
    assert_non_null(strstr(error.message, "alias: is an input of this command ("));
    assert_int_equal(output_guard(in_folder("alias"), inputs, 2, &error), GB_OK);
    assert_int_equal(output_guard(in_folder("new"), inputs, 3, &error), GB_OK);
    snprintf(other, sizeof other, "%s/./new", folder);
    const char *outputs[] = {in_folder("input"), NULL, in_folder("new"), in_folder("other"), other};
    assert_int_equal(output_guard_each(outputs, 4, &error), GB_OK);
    assert_int_equal(output_guard_each(outputs, 5, &error), GB_EINVAL);
    assert_non_null(strstr(error.message, "/./new: is to be written twice ("));
    const char *devices[] = {"/dev/null", "/dev/null"}, *aliases[] = {in_folder("alias"), in_folder("input")};
    assert_int_equal(output_guard_each(devices, 2, &error), GB_OK);
    assert_int_equal(output_guard_each(aliases, 2, &error), GB_EINVAL);
    const char *lost[] = {in_folder("no/folder"), in_folder("no/folder")};
    assert_int_equal(output_guard_each(lost, 2, &error), GB_OK);
    assert_int_equal(output_guard_writable(NULL, &error), GB_OK);
    assert_int_equal(output_guard_writable(in_folder("new"), &error), GB_OK);
    assert_int_equal(output_guard_writable(in_folder("input"), &error), GB_OK);
    assert_int_equal(output_guard_writable("", &error), GB_EIO);
    assert_int_equal(output_guard_writable(folder, &error), GB_EIO);
    assert_non_null(strstr(error.message, "cannot be written: Is a directory"));
    assert_int_equal(output_guard_writable(in_folder("no/folder"), &error), GB_EIO);
    assert_non_null(strstr(error.message, "cannot be written: No such file or directory"));
    ask_as_another(true);
    assert_int_equal(output_guard_writable("/gaugeblock-test.json", &error), GB_EIO);
    assert_string_equal(error.message, "/gaugeblock-test.json: cannot be written: Permission denied");
    ask_as_another(false);
    assert_int_equal(output_guard_checkpoint(in_folder("model.safetensors"), folder, &error), GB_EINVAL);
    assert_int_equal(output_guard_checkpoint(in_folder("input"), folder, &error), GB_OK);
    assert_int_equal(output_guard_checkpoint(in_folder("new.json"), folder, &error), GB_OK);
}

static void test_outputs_have_whole_paths(void **state)
{
    (void)state;
    struct gb_error error = {""};
    const char *found;
    char own[4096], right[4200];
    assert_non_null(getcwd(own, sizeof own));
    assert_int_equal(chdir(folder), 0);
    char *real = realpath(".", NULL);
    assert_int_equal(output_begin("relative.json", &found, &error), GB_OK);
    snprintf(right, sizeof right, "%s/relative.json", real);
    assert_string_equal(found, right);
    free((char *)found);
    assert_int_equal(output_begin("/relative-gaugeblock-test.json", &found, &error) == GB_OK ? 0 : 1,
                     access("/", W_OK) ? 1 : 0);
    if (!access("/", W_OK)) {
        assert_string_equal(found, "/relative-gaugeblock-test.json");
        free((char *)found);
    }
    assert_int_equal(symlink("nowhere", "dangling"), 0);
    assert_int_equal(output_begin("dangling", &found, &error), GB_EIO);
    assert_string_equal(error.message, "dangling: is no regular file; name another");
    assert_int_equal(output_begin("no/folder", &found, &error), GB_EIO);
    free(real);
    assert_int_equal(chdir(own), 0);
}

static void test_changes_are_described(void **state)
{
    (void)state;
    static const struct {
        unsigned loading, calls;
        const char *text;
    } cases[] = {
        {0, 0, ""},
        {ENVIRONMENT_ROUNDING, 0, "loading the library changed the rounding mode; reset before each call"},
        {0, ENVIRONMENT_SUBNORMALS | ENVIRONMENT_TRAPS,
         "the kernel's functions changed the flushing of subnormals and the floating-point traps; reset before each call"},
        {ENVIRONMENT_PRECISION, ENVIRONMENT_ROUNDING,
         "loading the library changed the precision of the x87; the kernel's functions changed the rounding mode; reset "
         "before each call"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        environment_describe(cases[i].loading, cases[i].calls, text, sizeof text);
        assert_string_equal(text, cases[i].text);
    }
}

#ifdef __x86_64__
static void set_precision_53(void)
{
    unsigned short control;
    __asm__ volatile("fnstcw %0" : "=m"(control));
    control = (unsigned short)((control & ~0x300) | 0x200);
    __asm__ volatile("fldcw %0" : : "m"(control));
}
#endif

/* Each change is seen by itself, and gone. */
static void test_changes_are_seen(void **state)
{
    (void)state;
    assert_int_equal(environment_reset(), 0);
    for (unsigned change = 1; change < 32; change++) {
        unsigned right = 0;
        if (change & 1 && fesetround(FE_UPWARD) == 0)
            right |= ENVIRONMENT_ROUNDING;
        if (change & 2 && feenableexcept(FE_INVALID) >= 0)
            right |= ENVIRONMENT_TRAPS;
#ifdef __x86_64__
        if (change & 4) /* results that would be subnormal are zeros */
            _mm_setcsr(_mm_getcsr() | 0x8000);
        if (change & 8) /* operands that are */
            _mm_setcsr(_mm_getcsr() | 0x0040);
        if (change & 16)
            set_precision_53();
        right |= (change & 12 ? ENVIRONMENT_SUBNORMALS : 0) | (change & 16 ? ENVIRONMENT_PRECISION : 0);
#endif
        unsigned found = environment_reset(), left = environment_reset();
        if (found != right || left || fegetround() != FE_TONEAREST || fegetexcept())
            fail_msg("change %u: seen %u, and not %u; %u of it is left", change, found, right, left);
    }
}

static void test_words(void **state)
{
    (void)state;
    char copy[6], path[200];
    uint64_t value = 77;
    assert_string_equal(printable("a\x7f~ \nbc", copy, sizeof copy), "a?~ ?");
    assert_string_equal(printable("abc", copy, sizeof copy), "abc");
    memset(path, 'x', sizeof path);
    path[161] = '\0';
    path[0] = 'a';
    assert_ptr_equal(path_end(path), path + 1);
    path[160] = '\0';
    assert_ptr_equal(path_end(path), path);
    assert_true(parse_number("12", 12, 12, &value) && value == 12);
    static const char *const wrong[] = {"", "-1", " 12", "+12", "12x", "11", "13", "99999999999999999999", "x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(parse_number(wrong[i], 12, 12, &value));
    assert_true(parse_number("0", 0, 9, &value) && value == 0);
    assert_true(parse_number("9", 0, 9, &value) && value == 9);
    assert_true(parse_number("18446744073709551615", 0, UINT64_MAX, &value) && value == UINT64_MAX);
}

static void expect_json(const char *text, const char *right)
{
    json_t *string = record_string(text);
    assert_non_null(string);
    assert_string_equal(json_string_value(string), right);
    json_decref(string);
}

static void test_any_text_is_json(void **state)
{
    (void)state;
    expect_json("two\nlines, \x01 and \x7f", "two lines, ? and ?");
    expect_json("\xc3\xa9", "\xc3\xa9");
    expect_json("\xc3\xa9 and \xff~", "?? and ?~");
}

static void expect_batches(const char *text, enum gb_status status, uint32_t count, uint32_t last)
{
    uint32_t batches[MAX_BATCHES] = {0}, found = 0;
    struct gb_error error;
    assert_int_equal(parse_batches("--batch", text, 40, batches, &found, &error), status);
    if (status == GB_OK)
        assert_true(found == count && batches[count - 1] == last);
    else
        assert_non_null(strstr(error.message, count ? "at most 32 batches" : "give ascending numbers from 1 to 40"));
}

static void test_batches(void **state)
{
    (void)state;
    static const char most[] = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32";
    char more[200];
    expect_batches("1", GB_OK, 1, 1);
    expect_batches("1,2,40", GB_OK, 3, 40);
    expect_batches(most, GB_OK, 32, 32);
    snprintf(more, sizeof more, "%s,33", most);
    expect_batches(more, GB_EINVAL, 1, 0);
    static const char *const wrong[] = {"", "0", "41", "2,1", "2,2", "1,,2", "1,", ",1", "-1", "1;2", "1x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_batches(wrong[i], GB_EINVAL, 0, 0);
}

static void test_roundings_are_declared(void **state)
{
    (void)state;
    struct gb_error error;
    struct declared_precision d = {0};
    assert_int_equal(declare_roundings(&d, "gate_up=bf16,silu=fp32,weighted=bf16", &error), GB_OK);
    assert_true(d.roundings.gate_up == GB_BF16 && d.roundings.silu == GB_FP32 && d.roundings.weighted == GB_BF16);
    assert_true(!d.roundings.slot && !d.roundings.routing_weight);
    assert_string_equal(d.roundings_text, "gate_up=bf16,silu=fp32,weighted=bf16");
    static const struct {
        const char *text, *word;
    } wrong[] = {{"", "--rounding : no such stage; there are gate_up, silu, slot, routing_weight and weighted"},
                 {"gate=bf16", "--rounding gate=bf16: no such stage"},
                 {"gate_upp=bf16", "no such stage"},
                 {"slot", "--rounding slot: give slot=fp32 or slot=bf16"},
                 {"slot=fp16", "--rounding slot=fp16: give slot=fp32 or slot=bf16"},
                 {"slot=bf16bf16bf16", "give slot=fp32 or slot=bf16"},
                 {"slot=bf16,", "no such stage"},
                 {"slot=bf16,silu=bf16,slot=fp32", "--rounding: slot is given twice"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct declared_precision none = {0};
        assert_int_equal(declare_roundings(&none, wrong[i].text, &error), GB_EINVAL);
        if (!strstr(error.message, wrong[i].word))
            fail_msg("%s: %s", wrong[i].text, error.message);
    }
}

/* What a table may say of a kernel: both ends of each number and each length. */
static void test_kernels_of_a_table(void **state)
{
    (void)state;
    char text[2][NAME_BYTES + 1];
    struct gb_error error;
    const struct gb_kernel good = {.name = "!~",
                                   .operation = GB_LAYER,
                                   .weights = GB_NVFP4,
                                   .activations = GB_BF16,
                                   .output = GB_BF16,
                                   .accumulator_bits = 24,
                                   .order = "fma32/1"};
    assert_int_equal(library_check_kernel("here", 3, &good, &error), GB_OK);
    memset(text, 'n', sizeof text);
#define TAKEN_OR(SAID, ...)                                                                                            \
    do {                                                                                                               \
        struct gb_kernel kernel = good;                                                                                \
        __VA_ARGS__;                                                                                                   \
        assert_int_equal(library_check_kernel("here", 3, &kernel, &error), *(SAID) ? GB_EINVAL : GB_OK);               \
        assert_true(!*(SAID) || strstr(error.message, SAID));                                                          \
    } while (0)
    TAKEN_OR("kernel 3 lacks a name", kernel.name = NULL);
    TAKEN_OR("kernel 3 lacks a name", kernel.name = "");
    TAKEN_OR("kernel 3: a name is", kernel.name = "a b");
    TAKEN_OR("kernel 3: a name is", kernel.name = "a\x7f");
    TAKEN_OR("", text[0][NAME_BYTES - 1] = 0; kernel.name = text[0]);
    TAKEN_OR("kernel 3: a name is", text[1][NAME_BYTES] = 0; kernel.name = text[1]);
    TAKEN_OR("", kernel.order = NULL);
    TAKEN_OR("an order is", kernel.order = "");
    TAKEN_OR("an order is", kernel.order = "a b");
    TAKEN_OR("", text[0][ORDER_BYTES - 1] = 0; kernel.order = text[0]);
    TAKEN_OR("an order is", text[1][ORDER_BYTES] = 0; kernel.order = text[1]);
    TAKEN_OR("", kernel.flags = GB_ROUTES);
    TAKEN_OR("has GB_ROUTES", kernel.flags = GB_ROUTES; kernel.operation = GB_COMBINE);
    TAKEN_OR("", kernel.flags = GB_ONE_RANK; kernel.operation = GB_COMBINE);
    TAKEN_OR("has GB_ONE_RANK", kernel.flags = GB_ONE_RANK);
    TAKEN_OR("are unknown", kernel.operation = (enum gb_operator)77);
    TAKEN_OR("", kernel.activations = GB_NVFP4);
    TAKEN_OR("are unknown", kernel.activations = (enum gb_format)77);
    TAKEN_OR("", kernel.output = GB_FP32);
    TAKEN_OR("are unknown", kernel.output = GB_NVFP4);
    TAKEN_OR("", kernel.accumulator_bits = 8);
    TAKEN_OR("are unknown", kernel.accumulator_bits = 7);
    TAKEN_OR("", kernel.accumulator_bits = 53);
    TAKEN_OR("are unknown", kernel.accumulator_bits = 54);
    TAKEN_OR("", kernel.roundings.gate_up = GB_BF16);
    TAKEN_OR("are unknown", kernel.roundings.gate_up = GB_NVFP4);
    TAKEN_OR("are unknown", kernel.roundings.slot = GB_NVFP4);
#undef TAKEN_OR
}

/* The CUDA library, which is not beside this program, is asked for where a pattern can match one of its kernels. */
static void test_cuda_is_asked_for(void **state)
{
    static const struct {
        const char *patterns[2];
        bool asked;
    } right[] = {{{"cuda/none"}, true},
                 {{"cuda/"}, true},
                 {{"cuda/*"}, true},
                 {{"*"}, true},
                 {{"c*"}, true},
                 {{"cuda*"}, true},
                 {{"?uda/a"}, true},
                 {{"[c]uda/a"}, true},
                 {{"\\cuda/a"}, true},
                 {{"cud"}, false},
                 {{"cuda"}, false},
                 {{"cudb*"}, false},
                 {{"cpu/*"}, false},
                 {{"d*"}, false},
                 {{""}, false},
                 {{"cpu/*", "c?da/x"}, true},
                 {{"cpu/a", "b*"}, false},
                 {{"cuda/a", "cpu/a"}, true}};
    static struct catalogue c;
    struct gb_error error;
    (void)state;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        const uint32_t count = right[i].patterns[1] ? 2 : 1;
        assert_int_equal(catalogue_open(NULL, 0, right[i].patterns, count, 10, &c, &error), GB_OK);
        if (!c.cuda_missing[0] == right[i].asked || c.own != 1 || c.count != 1 || !c.library[0].count)
            fail_msg("%s: \"%s\", %u libraries", right[i].patterns[0], c.cuda_missing, c.count);
        assert_true(!right[i].asked || strstr(c.cuda_missing, "this build has no CUDA kernels"));
        catalogue_close(&c);
        assert_int_equal(c.count, 0);
    }
}

static void test_verdicts(void **state)
{
    (void)state;
    static const struct {
        enum verdict verdict;
        const char *name;
        int code;
    } ascending[] = {{VERDICT_PASS, "PASS", 0},
                     {VERDICT_NOT_RUN, "NOT_RUN", 3},
                     {VERDICT_UNSUPPORTED, "UNSUPPORTED", 3},
                     {VERDICT_VACUOUS, "VACUOUS", 4},
                     {VERDICT_FAIL, "FAIL", 1},
                     {VERDICT_NONDETERMINISTIC, "NONDETERMINISTIC", 6},
                     {VERDICT_BAD_INPUT, "BAD_INPUT", 2},
                     {VERDICT_CRASH, "CRASH", 5}};
    for (size_t i = 0; i < sizeof ascending / sizeof *ascending; i++) {
        assert_string_equal(verdict_name(ascending[i].verdict), ascending[i].name);
        assert_int_equal(verdict_exit_code(ascending[i].verdict), ascending[i].code);
        for (size_t j = 0; j <= i; j++) {
            assert_int_equal(verdict_graver(ascending[i].verdict, ascending[j].verdict), ascending[i].verdict);
            assert_int_equal(verdict_graver(ascending[j].verdict, ascending[i].verdict), ascending[i].verdict);
        }
    }
}

static void test_children_leave_memory(void **state)
{
    (void)state;
    char text[CHILD_SAID], back[8] = "";
    struct gb_error error;
    int file = child_memory("test", 4096), log = child_memory("said", CHILD_LOG);
    assert_true(file >= 0 && log >= 0);
    assert_int_equal(child_memory("none", SIZE_MAX), -1);
    assert_int_equal(errno, EINVAL);
    assert_true(ftruncate(file, 8192) && ftruncate(file, 10));
    assert_int_equal(pwrite(file, "content", 8, 100), 8);
    assert_int_equal(child_read(file, 100, back, 8, &error), GB_OK);
    assert_string_equal(back, "content");
    assert_int_equal(child_read(file, 4092, back, 8, &error), GB_EIO);
    assert_string_equal(child_said(log, text, sizeof text), "");
    assert_true(pwrite(log, "first\nlast \x01\n\n", 15, 0) == 15);
    assert_string_equal(child_said(log, text, sizeof text), "; its last line: last ?");
    assert_string_equal(child_describe(0, text, sizeof text), "");
    assert_string_equal(child_describe(3 << 8, text, sizeof text), "ended with exit code 3");
    assert_string_equal(child_describe(SIGSEGV, text, sizeof text), "killed by signal 11 (Segmentation fault)");
    close(file);
    close(log);
    assert_int_equal(setenv("TMPDIR", "/somewhere", 1), 0);
    assert_string_equal(child_folder(), "/somewhere");
    assert_int_equal(setenv("TMPDIR", "", 1), 0);
    assert_string_equal(child_folder(), "/tmp");
    assert_int_equal(unsetenv("TMPDIR"), 0);
    assert_string_equal(child_folder(), "/tmp");
}

/* What was seen first stays. */
static void test_what_was_seen(void **state)
{
    (void)state;
    struct worker_checks a = {.where = ""}, b = {.where = ""}, c = {.where = ""};
    array_note(&a, &a.canary_broken, "beside ", "output", 0);
    assert_true(a.canary_broken && !a.input_changed);
    assert_string_equal(a.where, "beside output of layer 0");
    array_note(&a, &a.input_changed, "", "x", 1);
    assert_true(a.canary_broken && a.input_changed);
    assert_string_equal(a.where, "beside output of layer 0");
    array_note(&b, &b.input_changed, "", "ids", -1);
    array_note(&b, &b.canary_broken, "beside ", "ids", -1);
    assert_string_equal(b.where, "ids");
    array_note(&c, &c.input_changed, "", "x", 12);
    assert_string_equal(c.where, "x of layer 12");
}

static void test_parcels(void **state)
{
    (void)state;
    static const char head[5] = "head", first[17] = "sixteen and more", third[3] = "me";
    const struct piece packed[] = {{first, sizeof first}, {NULL, 0}, {third, sizeof third}};
    struct piece pieces[] = {{NULL, sizeof first}, {first, 0}, {NULL, sizeof third}};
    struct gb_parcel parcel;
    assert_true(task_pack(head, sizeof head, packed, 3, &parcel));
    assert_int_equal(parcel.size, 16 + 32 + 16);
    assert_string_equal(parcel.bytes, "head");
    task_unpack(&parcel, sizeof head, pieces, 3);
    assert_string_equal(pieces[0].values, first);
    assert_true(!pieces[1].values && (const char *)pieces[0].values == (const char *)parcel.bytes + 16);
    assert_string_equal(pieces[2].values, third);
    assert_true((const char *)pieces[2].values == (const char *)parcel.bytes + 48);
    free(parcel.bytes);
}

/* What processes tell each other, as the other one of two: an announcement ahead of each parcel, and a word ahead of
 * each task. */
struct announced {
    uint64_t size;
    int32_t status;
    char message[sizeof((struct gb_error){0}.message)];
};
struct told {
    bool end;
    int code;
    unsigned timeout_s;
    size_t size;
};

/* The other process: how it is, which of the swaps it does not take part in (from 1), and what was heard of it. */
static struct {
    int swaps, missed;
    enum gb_status status;    /* of its part */
    double least;             /* seconds that a swap had */
    struct announced heard;   /* the last announcement of this process */
    struct told word, ends;   /* what it says as process 0, first and last; the last word that it was told */
    const char *part, *sends; /* the part that it gives as process 0; what it sends of its own */
    char got[64];             /* the last parcel that is neither */
    bool agrees;              /* it was started with the same arguments */
} peer;

static bool peer_swap(const struct gb_parcel *to, const struct gb_parcel *from, double until, uint32_t *missing)
{
    const uint32_t own = processes.process, other = 1 - own;
    const double left = until - clock_seconds();
    peer.least = until > 0.0 && left < peer.least ? left : peer.least;
    *missing = other;
    if (++peer.swaps == peer.missed)
        return false;
    if (from[own].size)
        memcpy(from[own].bytes, to[own].bytes, from[own].size);
    if (from[other].size == sizeof(struct announced)) {
        struct announced says = {peer.status == GB_OK ? strlen(peer.sends) : 0, peer.status, ""};
        snprintf(says.message, sizeof says.message, "%s", peer.status == GB_OK ? "" : "it is ill");
        memcpy(from[other].bytes, &says, sizeof says);
    } else if (from[other].size == sizeof(struct told)) {
        memcpy(from[other].bytes, &peer.word, sizeof peer.word);
        peer.word = peer.ends;
    } else if (from[other].size && peer.agrees && to[other].size == from[other].size) {
        memcpy(from[other].bytes, to[other].bytes, from[other].size);
    } else if (from[other].size) {
        const char *text = from[other].size == strlen(peer.part) ? peer.part : peer.sends;
        memset(from[other].bytes, 0, from[other].size);
        memcpy(from[other].bytes, text, strlen(text) < from[other].size ? strlen(text) : from[other].size);
    }
    if (to[other].size == sizeof peer.heard)
        memcpy(&peer.heard, to[other].bytes, sizeof peer.heard);
    else if (to[other].size == sizeof peer.ends)
        memcpy(&peer.ends, to[other].bytes, sizeof peer.ends);
    else if (to[other].size)
        snprintf(peer.got, sizeof peer.got, "%.*s", (int)to[other].size, (char *)to[other].bytes);
    return true;
}

static _Noreturn void peer_abort(int code)
{
    _exit(100 + code);
}

static enum gb_status own_status;
static bool exchanges; /* the part itself, too */

/* This process's part: its task again, behind a star. What has failed between the processes is not sent again. */
static enum gb_status starred(const struct gb_processes *all, const struct gb_parcel *part, struct gb_parcel *result,
                              struct gb_error *error)
{
    const struct gb_parcel to[2] = {{"x", 1}, {"y", 1}};
    struct gb_parcel from[2];
    struct gb_error again = {""};
    enum gb_status status = exchanges ? all->exchange(all, GB_OK, to, from, error) : GB_OK;
    if (exchanges && status == GB_OK) {
        const bool good = from[0].size == 1 && !memcmp(from[0].bytes, "x", 1) && from[1].size == strlen("theirs") &&
                          !memcmp(from[1].bytes, "theirs", from[1].size);
        free(from[0].bytes);
        free(from[1].bytes);
        if (!good)
            return gb_fail(error, GB_EFORMAT, "others were got than sent");
    }
    if (status != GB_OK &&
        (all->exchange(all, GB_OK, to, from, &again) != status || strcmp(again.message, error->message)))
        return gb_fail(error, GB_EFORMAT, "what failed did not fail again: %.400s", again.message);
    if (status != GB_OK)
        return status;
    if (all->count != 2 || all->process != processes.process || own_status != GB_OK)
        return gb_fail(error, own_status, "no star for %.*s", (int)part->size, (char *)part->bytes);
    result->size = part->size + 1;
    result->bytes = malloc(result->size);
    memcpy(result->bytes, "*", 1);
    memcpy((char *)result->bytes + 1, part->bytes, part->size);
    return GB_OK;
}

#define SAME(A, B)                                                                                                     \
    do {                                                                                                               \
        if ((long)(A) != (long)(B)) {                                                                                  \
            print_error("missed %d, line %d: " #A " is %ld, and not %ld\n", peer.missed, __LINE__, (long)(A),          \
                        (long)(B));                                                                                    \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define SAME_TEXT(A, B)                                                                                                \
    do {                                                                                                               \
        if (strcmp(A, B)) {                                                                                            \
            print_error("missed %d, line %d: \"%s\", and not \"%s\"\n", peer.missed, __LINE__, A, B);                  \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* As process 0 of two, in a process of its own, which ends with 7: tasks of which swap `missed` is not answered. */
static void lead_two(int missed)
{
    const struct gb_parcel parts[2] = {{"one", 3}, {"other", 5}};
    char *words[] = {"verify", NULL};
    struct gb_parcel results[2];
    struct gb_error error;
    bool leads, lost;
    int code;
    peer.sends = "theirs";
    peer.part = "";
    peer.least = 1e9;
    SAME(processes_lead(words, starred, &leads, &code, &error), GB_OK);
    SAME(leads, true);
    processes = (struct processes){0, 2, .swap = peer_swap, .abort = peer_abort};
    for (int run = 0; run < 6; run++) {
        static const struct {
            enum gb_status own, other, status;
            const char *says;
            int swaps;
        } right[] = {{GB_OK, GB_OK, GB_OK, "", 4},
                     {GB_OK, GB_OK, GB_OK, "", 6},
                     {GB_OK, GB_ENOMEM, GB_ENOMEM, "process 1 of 2: it is ill", 3},
                     {GB_EINVAL, GB_OK, GB_EINVAL, "no star for one", 3},
                     {GB_OK, GB_ENOMEM, GB_ENOMEM, "process 1 of 2: it is ill", 3},
                     {GB_EINVAL, GB_ENOMEM, GB_EINVAL, "no star for one", 3}};
        own_status = right[run].own;
        exchanges = run == 1 || run == 2;
        peer.status = right[run].other;
        peer.swaps = 0;
        peer.missed = run ? 0 : missed;
        enum gb_status status = processes_task(parts, 50, results, &lost, &error);
        SAME(lost, missed != 0 && run == 0);
        SAME(status, missed && run ? GB_EUNSUPPORTED : missed ? GB_EIO : right[run].status);
        SAME(peer.swaps, missed ? (run ? 0 : missed) : right[run].swaps);
        if (missed) {
            SAME_TEXT(error.message, run ? "a process has not answered before"
                                         : "process 1 of 2 has not answered within the time limit");
            continue;
        }
        SAME(peer.ends.end, false);
        SAME(peer.ends.timeout_s, 50);
        SAME(peer.ends.size, 5);
        SAME(peer.heard.status, right[run].own);
        SAME(peer.heard.size, run == 2 ? 1 : 0); /* nothing else is sent to it: results go to process 0 */
        SAME_TEXT(peer.heard.message, right[run].own == GB_OK ? "" : "no star for one");
        SAME_TEXT(peer.got, run == 1 ? "y" : "other");
        if (status != GB_OK) {
            SAME_TEXT(error.message, right[run].says);
            continue;
        }
        SAME(results[0].size, 4);
        SAME(memcmp(results[0].bytes, "*one", 4), 0);
        SAME(results[1].size, 6);
        SAME(memcmp(results[1].bytes, "theirs", 6), 0);
        free(results[0].bytes);
        free(results[1].bytes);
    }
    SAME(peer.least > 45.0 && peer.least <= 50.0, true);
    processes.count = 1;
}

/* What the others are told as process 0 ends. */
static void see_dismissed(int code, void *unused)
{
    (void)unused;
    if (peer.missed || !peer.ends.end || peer.ends.code != code || peer.swaps != 1 || peer.least > 10.0 ||
        peer.least < 5.0)
        _exit(2);
}

static void leave_two(bool answered)
{
    char *words[] = {"verify", NULL};
    struct gb_error error;
    bool leads;
    int code;
    processes = (struct processes){0, 2, .swap = peer_swap, .abort = peer_abort};
    on_exit(see_dismissed, NULL); /* it is called behind the one that is registered now */
    peer.agrees = !answered;
    SAME(processes_lead(words, starred, &leads, &code, &error), answered ? GB_EINVAL : GB_OK);
    SAME(leads, true);
    if (answered)
        SAME_TEXT(error.message,
                  "process 1 of 2 was started with other arguments than process 0: give all the same, or start "
                  "each without mpirun");
    peer.swaps = 0;
    peer.least = 1e9;
    peer.missed = answered ? 0 : 1;
    exit(7);
}

/* As process 1: a task, and then the end of process 0 with 9. */
static void follow_one(void)
{
    char *words[] = {"verify", NULL};
    struct gb_error error;
    bool leads;
    int code;
    processes = (struct processes){1, 2, .swap = peer_swap, .abort = peer_abort};
    peer.word = (struct told){.timeout_s = 50, .size = 4};
    peer.ends = (struct told){.end = true, .code = 9};
    peer.part = "some";
    peer.sends = "";
    peer.least = 1e9;
    SAME(processes_lead(words, starred, &leads, &code, &error), GB_OK);
    SAME(leads, false);
    SAME(code, 9);
    SAME(peer.swaps, 1 + 4 + 1);
    SAME(peer.heard.size, 5);
    SAME_TEXT(peer.got, "*some");
    SAME(peer.least > 45.0 && peer.least <= 50.0, true);
}

static void test_processes_tell_each_other(void **state)
{
    (void)state;
    for (int n = 0; n < 8; n++) { /* a task with one of four swaps missed, or none; both ends; the other process */
        int status;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            peer.part = peer.sends = "";
            if (n < 5)
                lead_two(n);
            else if (n < 7)
                leave_two(n == 5);
            else
                follow_one();
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != (n == 5 ? 7 : n == 6 ? 107 : 0))
            fail_msg("%d: %x", n, status);
    }
}

/* Weights of which some fail, or scales: of which layer, expert and projection. */
enum failing { NOTHING_FAILS, EXPERT_FAILS, MATRIX_FAILS, SCALES_FAIL };
static struct {
    struct gb_fixture *fixture;
    enum failing what;
    uint32_t layer;
    int projection;
    bool found;                                /* scales */
    int experts[2], matrices[2][3], scales[2]; /* calls, by layer */
} weights_of;

static bool fails_here(enum failing what, uint32_t layer)
{
    return weights_of.what == what && weights_of.layer == layer;
}

static enum gb_status source_expert(void *fixture, uint32_t layer, uint32_t e, struct gb_error *error)
{
#pragma omp atomic
    weights_of.experts[layer]++;
    return fails_here(EXPERT_FAILS, layer) && e == 1 ? gb_fail(error, GB_EIO, "no expert %u", e)
                                                     : gb_generate_expert(fixture, layer, e, error);
}

static enum gb_status source_matrix(void *fixture, uint32_t layer, uint32_t e, enum gb_projection p, float *values,
                                    struct gb_error *error)
{
#pragma omp atomic
    weights_of.matrices[layer][p]++;
    return fails_here(MATRIX_FAILS, layer) && (int)p == weights_of.projection
               ? gb_fail(error, GB_EFORMAT, "no matrix %u", layer)
               : gb_generate_matrix(fixture, layer, e, p, values, error);
}

static enum gb_status source_scales(void *fixture, uint32_t layer, float *scales, bool *found, struct gb_error *error)
{
    (void)fixture;
    weights_of.scales[layer]++;
    scales[0] = 7.0f;
    scales[1] = 9.0f;
    *found = weights_of.found;
    return fails_here(SCALES_FAIL, layer) ? gb_fail(error, GB_EINVAL, "no scales %u", layer) : GB_OK;
}

/* What fails of the weights is said, and nothing that comes behind it is asked for. */
static void test_weights_fail(void **state)
{
    static const struct gb_shape shape = {3, 32, 16, 3, 3}; /* every token uses every expert */
    static const struct {
        enum failing what;
        uint32_t layer;
        int projection;
        bool found;
        enum gb_status status;
        const char *says;
        int experts[2], matrices[2][3], scales[2];
    } right[] = {
        {NOTHING_FAILS, 0, 0, true, GB_OK, "", {3, 3}, {{6, 6, 6}, {6, 6, 6}}, {1, 1}},
        {NOTHING_FAILS, 0, 0, false, GB_OK, "", {3, 3}, {{6, 6, 6}, {6, 6, 6}}, {1, 1}},
        {EXPERT_FAILS, 0, 0, true, GB_EIO, "no expert 1", {3, 0}, {{0}}, {0}},
        {EXPERT_FAILS, 1, 0, true, GB_EIO, "no expert 1", {3, 3}, {{6, 6, 6}}, {1, 0}},
        {SCALES_FAIL, 0, 0, false, GB_EINVAL, "no scales 0", {3, 0}, {{0}}, {1, 0}},
        {SCALES_FAIL, 1, 0, true, GB_EINVAL, "no scales 1", {3, 3}, {{6, 6, 6}}, {1, 1}},
        {MATRIX_FAILS, 0, GB_GATE_PROJ, true, GB_EFORMAT, "no matrix 0", {3, 0}, {{1, 0, 0}}, {1, 0}},
        {MATRIX_FAILS, 0, GB_UP_PROJ, true, GB_EFORMAT, "no matrix 0", {3, 0}, {{1, 1, 0}}, {1, 0}},
        {MATRIX_FAILS, 1, GB_DOWN_PROJ, true, GB_EFORMAT, "no matrix 1", {3, 3}, {{6, 6, 6}, {1, 1, 1}}, {1, 1}},
    };
    const struct weight_source source = {NULL, source_matrix, source_expert, source_scales};
    (void)state;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        struct gb_error error = {""};
        struct gb_fixture *f;
        assert_int_equal(gb_fixture_new(&shape, 2, GB_NVFP4, true, true, false, &f, &error), GB_OK);
        f->norm_topk_prob = true;
        f->rms_norm_epsilon = 1e-6;
        f->seed = 3;
        snprintf(f->recipe, sizeof f->recipe, "%s", gb_recipe_default(GB_NVFP4)->name);
        snprintf(f->generator, sizeof f->generator, "gaussian/1");
        assert_int_equal(activations_choose(f, GB_NVFP4, NULL, &error), GB_OK);
        assert_int_equal(gb_generate_inputs(f, &error), GB_OK);
        memset(&weights_of, 0, sizeof weights_of);
        weights_of.what = right[i].what;
        weights_of.layer = right[i].layer;
        weights_of.projection = right[i].projection;
        weights_of.found = right[i].found;
        struct weight_source from = source;
        from.context = f;
        enum gb_status status = build_fixture(f, &from, false, &error);
        if (status != right[i].status || strcmp(status == GB_OK ? "" : error.message, right[i].says))
            fail_msg("%zu: status %d, \"%s\"", i, (int)status, error.message);
        for (int l = 0; l < 2; l++) {
            int *m = weights_of.matrices[l];
            if (weights_of.experts[l] != right[i].experts[l] || weights_of.scales[l] != right[i].scales[l] ||
                memcmp(m, right[i].matrices[l], sizeof right[i].matrices[l]))
                fail_msg("%zu, layer %d: %d experts, matrices %d, %d, %d, scales %d", i, l, weights_of.experts[l], m[0],
                         m[1], m[2], weights_of.scales[l]);
            if (status == GB_OK) /* as they are given, or as the tokens are, which are small */
                assert_true(right[i].found
                                ? f->layer[l].activation_scales[0] == 7.0f && f->layer[l].activation_scales[1] == 9.0f
                                : f->layer[l].activation_scales[0] < 0.1f && f->layer[l].activation_scales[1] < 0.1f);
        }
        gb_fixture_free(f);
    }
}

static void test_the_host_copies(void **state)
{
    (void)state;
    enum { BYTES = 100003 };
    uint8_t *from = malloc(BYTES), *to = malloc(BYTES + 1);
    size_t cache;
    unsigned long kib = 65536;
    struct gb_error error;
    assert_true(from && to);
    for (size_t i = 0; i < BYTES; i++)
        from[i] = (uint8_t)(i * 2654435761u >> 11);
    to[BYTES] = 0x77;
    host_timer_copy(to, from, BYTES);
    assert_memory_equal(to, from, BYTES);
    assert_int_equal(to[BYTES], 0x77);
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (file) {
        (void)!fscanf(file, "%luK", &kib);
        fclose(file);
    }
    assert_int_equal(host_timer()->cache_bytes(&cache, &error), GB_OK);
    assert_int_equal(cache, kib << 10);
    /* 64 MiB where the system does not tell, here for want of descriptors. */
    struct rlimit files, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    none = (struct rlimit){0, files.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum gb_status status = host_timer()->cache_bytes(&cache, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(status, GB_OK);
    assert_int_equal(cache, 64 << 20);
    free(from);
    free(to);
}

/* What is read is every word once, however many threads share it and whatever is left of a whole line of 64 bytes or of
 * eight of them. */
static void test_the_host_reads(void **state)
{
    (void)state;
    enum { WORDS = 3 * 8 * 8 * 8 };
    uint64_t *from = aligned_alloc(64, WORDS * sizeof *from);
    assert_non_null(from);
    for (size_t i = 0; i < WORDS; i++)
        from[i] = (i + 1) * 0x9E3779B97F4A7C15;
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        uint64_t sum = 0;
        for (size_t words = 0; words < WORDS; sum += from[words++]) {
            uint64_t found = host_timer_sum(from, words * sizeof *from);
            if (found != sum)
                fail_msg("%d threads, %zu words: %llx, and not %llx", threads, words, (unsigned long long)found,
                         (unsigned long long)sum);
        }
    }
    free(from);
}

/* What a gate file may say, at both ends of every range. */
static void test_gate_files(void **state)
{
    (void)state;
    static const char name63[] = "123456789012345678901234567890123456789012345678901234567890123";
    static const struct {
        const char *keys, *word; /* NULL: it is good */
    } cases[] = {
        {"\"cosine\": 1", NULL},
        {"\"cosine\": 1.0001", "cosine: give a number above 0 to 1"},
        {"\"cosine\": 0", "cosine: give a number above 0 to 1"},
        {"\"cosine_min\": 1e-300", NULL},
        {"\"cosine_min\": 1.5", "cosine_min: give a number above 0 to 1"},
        {"\"cosine_min\": \"1\"", "cosine_min"},
        {"\"max_abs\": 0", NULL},
        {"\"max_abs\": 1e308", NULL},
        {"\"max_abs\": 1.1e308", "max_abs: give a number from 0 to 1e+308"},
        {"\"nmse\": 0", NULL},
        {"\"nmse\": 1e308", NULL},
        {"\"nmse\": 1.1e308", "nmse: give a number from 0 to 1e+308"},
        {"\"nmse\": -1e-300", "nmse: give a number from 0 to 1e+308"},
        {"\"atol\": 0, \"rtol\": 0", NULL},
        {"\"atol\": 1e308, \"rtol\": 1e308, \"fraction\": 1", NULL},
        {"\"atol\": 1.1e308, \"rtol\": 0", "atol: give"},
        {"\"atol\": -1e-9, \"rtol\": 0", "atol: give"},
        {"\"atol\": 0, \"rtol\": 1.1e308", "rtol: give"},
        {"\"atol\": 0", "atol and rtol go together"},
        {"\"rtol\": 0", "atol and rtol go together"},
        {"\"atol\": 0, \"rtol\": 0, \"fraction\": 1.01", "fraction: give a number above 0 to 1"},
        {"\"atol\": 0, \"rtol\": 0, \"either\": true", NULL},
        {"\"atol\": 0, \"rtol\": 0, \"either\": 1", "'either' is no key of a policy"},
        {"\"nmse\": 1, \"either\": true", "fraction and either go with atol and rtol"},
        {"\"nmse\": 1, \"either\": false", NULL},
        {"\"nmse\": 1, \"relative_to\": \"truth\"", NULL},
        {"\"nmse\": 1, \"relative_to\": \"subjects\"", "'relative_to' is no key of a policy"},
        {"\"nmse\": 1, \"relative_to\": 1", "'relative_to' is no key of a policy"},
        {"\"checks\": [\"rms\"]", NULL},
        {"\"checks\": [\"scale\"]", NULL},
        {"\"checks\": [\"exact\"]", NULL},
        {"\"checks\": []", "a policy without checks and thresholds lets everything pass"},
        {"\"checks\": \"rms\"", "checks: give an array of names"},
        {"\"checks\": [1]", "checks: there are"},
        {"\"nmse\": 1, \"name\": \"mine\"", NULL},
        {"\"nmse\": 1, \"name\": \" ~\"", NULL},
        {"\"nmse\": 1, \"name\": \"\"", "name: give 1 to 63 printable ASCII characters, none of them |"},
        {"\"nmse\": 1, \"name\": \"a|b\"", "name: give 1 to 63"},
        {"\"nmse\": 1, \"name\": \"a\\nb\"", "name: give 1 to 63"},
        {"\"nmse\": 1, \"name\": \"a\\u007f\"", "name: give 1 to 63"},
        {"\"nmse\": 1, \"name\": \"cosine-0.99\"", "name: 'cosine-0.99' is a preset's; give another"},
        {"\"nmse\": 1, \"name\": 5", "'name' is no key of a policy"},
    };
    struct gb_error error;
    struct policy p;
    char text[300];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "{\"schema\": \"gaugeblock-gate/2\", %s}", cases[i].keys);
        write_text(in_folder("gate.json"), text);
        enum gb_status status = policy_read(in_folder("gate.json"), &p, &error);
        if (status != (cases[i].word ? GB_EFORMAT : GB_OK) || (cases[i].word && !strstr(error.message, cases[i].word)))
            fail_msg("%s: %d, %s", cases[i].keys, (int)status, status == GB_OK ? "" : error.message);
    }
    for (unsigned i = 0; policy_preset(i, &p); i++) {
        snprintf(text, sizeof text, "{\"schema\": \"gaugeblock-gate/2\", \"nmse\": 0.25, \"name\": \"%s\"}", p.name);
        write_text(in_folder("gate.json"), text);
        assert_int_equal(policy_read(in_folder("gate.json"), &p, &error), GB_EFORMAT);
    }
    for (int more = 0; more < 2; more++) {
        snprintf(text, sizeof text, "{\"schema\": \"gaugeblock-gate/2\", \"nmse\": 0.25, \"name\": \"%s%.*s\"}", name63,
                 more, "4");
        write_text(in_folder("gate.json"), text);
        assert_int_equal(policy_read(in_folder("gate.json"), &p, &error), more ? GB_EFORMAT : GB_OK);
    }
    write_text(in_folder("gate.json"), "{\"schema\": \"gaugeblock-gate/2\", \"atol\": 0.5, \"rtol\": 0.25, "
                                       "\"relative_to\": \"subject\", \"checks\": [\"bound\"]}");
    assert_int_equal(policy_read(in_folder("gate.json"), &p, &error), GB_OK);
    assert_true(p.atol == 0.5 && p.rtol == 0.25 && p.fraction == 1.0 && p.by_subject && !p.either);
    assert_true(p.bound && !p.exact && !p.rms && !p.scale);
    assert_true(isnan(p.cosine) && isnan(p.cosine_min) && isnan(p.max_abs) && isnan(p.nmse));
    assert_string_equal(p.name, in_folder("gate.json"));
    assert_int_equal(policy_read(folder, &p, &error), GB_EIO);
}

/* Children, which are this program with words that main takes to children(). */

extern char **environ;

/* What a child has: what it reads from its standard input and from each descriptor from CHILD_SHARED on, and its
 * limits. */
static int tell(void)
{
    char text[32];
    struct rlimit core, seconds, bytes;
    ssize_t got = read(STDIN_FILENO, text, sizeof text);
    printf("input %zd\n", got);
    for (int file = CHILD_SHARED; (got = pread(file, text, sizeof text - 1, 0)) >= 0 || errno == ESPIPE; file++) {
        text[got < 0 ? 0 : got] = '\0';
        printf("%d %s\n", file, text);
    }
    getrlimit(RLIMIT_CORE, &core);
    getrlimit(RLIMIT_CPU, &seconds);
    getrlimit(RLIMIT_FSIZE, &bytes);
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    int signal_at_end = 0, held = 0;
    for (int signal = 1; signal < 32; signal++)
        held += sigismember(&blocked, signal);
    prctl(PR_GET_PDEATHSIG, &signal_at_end);
    printf("core %llu, %llu; seconds %llu, bytes %llu; leads %d, signal %d, blocked %d\n",
           (unsigned long long)core.rlim_cur, (unsigned long long)core.rlim_max, (unsigned long long)seconds.rlim_max,
           (unsigned long long)bytes.rlim_max, getsid(0) == getpid(), signal_at_end, held);
    return 0;
}

/* words: those behind "child", or behind "guard", which a guarded child has in front of its own. */
static int children(char **words)
{
    char byte;
    if (!strcmp(words[0], "tell"))
        return tell();
    if (!strcmp(words[0], "stop"))
        raise(SIGSTOP);
    if (!strcmp(words[0], "wait")) /* for the end of the lifeline */
        return read(STDIN_FILENO, &byte, 1) == 0 ? 7 : 8;
    if (!strcmp(words[0], "sleep"))
        sleep(60);
    return words[1] ? 9 : atoi(words[0]);
}

static int log_of(char text[512], int log)
{
    ssize_t got = pread(log, text, 511, 0);
    text[got > 0 ? got : 0] = '\0';
    return close(log);
}

/* Descriptors in their places, however they lay before, and no others; limits of a guarded child alone. */
static void test_children_have_what_is_theirs(void **state)
{
    (void)state;
    char text[512], right[512], *words[] = {"child", "child", "tell", NULL}, *guarded[] = {"child", "tell", NULL};
    struct child child;
    int status, shared[3], log = memfd_create("log", 0);
    const char *const contents[] = {"first", "second", "third"};
    for (int i = 0; i < 3; i++) {
        shared[i] = memfd_create("shared", 0);
        assert_true(write(shared[i], contents[i], strlen(contents[i])) > 0);
    }
    const int crossed[] = {CHILD_SHARED + 2, CHILD_SHARED + 1, CHILD_SHARED}; /* each where another one is to be */
    for (int i = 0; i < 3; i++)
        shared[i] = fcntl(shared[i], F_DUPFD, 40);
    int aside = fcntl(log, F_DUPFD, 50);
    for (int i = 0; i < 3; i++)
        assert_int_equal(dup2(shared[i], crossed[i]), crossed[i]);
    assert_int_equal(child_start(words, environ, aside, crossed, 3, &child), 0);
    assert_int_equal(child.lifeline, -1);
    assert_int_equal(child_wait(&child, 60, &status), CHILD_ENDED);
    assert_int_equal(status, 0);
    struct rlimit seconds, bytes;
    getrlimit(RLIMIT_CPU, &seconds);
    getrlimit(RLIMIT_FSIZE, &bytes);
    snprintf(right, sizeof right,
             "input 0\n3 first\n4 second\n5 third\ncore 0, 0; seconds %llu, bytes %llu; leads 1, signal 9, blocked 0\n",
             (unsigned long long)seconds.rlim_max, (unsigned long long)bytes.rlim_max);
    log_of(text, aside);
    assert_string_equal(text, right);
    aside = memfd_create("log", 0);
    assert_int_equal(child_start_guarded(guarded, environ, aside, crossed, 2, &(struct child_limits){3, 77}, &child),
                     0);
    assert_true(child.lifeline >= 0 && fcntl(child.lifeline, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(child_wait(&child, 1, &status), CHILD_TIMED_OUT); /* it reads the lifeline, which ends then */
    assert_int_equal(status, 0);
    assert_int_equal(child.lifeline, -1);
    snprintf(right, sizeof right,
             "input 0\n3 first\n4 second\ncore 0, 0; seconds %ld, bytes %llu; leads 1, signal 9, blocked 0\n",
             3 * sysconf(_SC_NPROCESSORS_CONF) + 10, (1ull << 30) + 77);
    log_of(text, aside);
    assert_string_equal(text, right);
    for (int i = 0; i < 3; i++) {
        close(shared[i]);
        close(crossed[i]);
    }
}

/* How one ends, and after which time. */
static void test_children_end(void **state)
{
    (void)state;
    static char *const code[] = {"child", "child", "5", NULL}, *const asleep[] = {"child", "child", "sleep", NULL};
    static char *const waits[] = {"child", "wait", NULL}, *const stops[] = {"child", "stop", NULL};
    const struct child_limits limits = {9, 0};
    struct child child;
    int status, log = memfd_create("log", 0);
    assert_int_equal(child_start(code, environ, log, NULL, 0, &child), 0);
    assert_int_equal(child_wait(&child, 60, &status), CHILD_ENDED);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    assert_int_equal(child_start(asleep, environ, log, NULL, 0, &child), 0);
    assert_int_equal(child_wait(&child, 0, &status), CHILD_TIMED_OUT);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(child_start_guarded(waits, environ, log, NULL, 0, &limits, &child), 0);
    assert_int_equal(child_wait(&child, 0, &status),
                     CHILD_TIMED_OUT); /* a guard ends what it guards, and then itself */
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    struct timespec before, now;
    clock_gettime(CLOCK_MONOTONIC, &before);
    assert_int_equal(child_start_guarded(stops, environ, log, NULL, 0, &limits, &child), 0);
    assert_int_equal(child_wait(&child, 1, &status), CHILD_TIMED_OUT); /* which a stopped one cannot */
    clock_gettime(CLOCK_MONOTONIC, &now);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && now.tv_sec - before.tv_sec < 5);
    close(log);
}

/* As many as may run at a time, and one more for each that was waited for, in whatever sequence. */
static void test_children_are_forgotten(void **state)
{
    (void)state;
    enum { MOST = 128 };
    static char *const words[] = {"child", "child", "0", NULL};
    static struct child child[MOST];
    struct child more;
    int status, log = memfd_create("log", 0);
    for (int i = 0; i < MOST; i++)
        assert_int_equal(child_start(words, environ, log, NULL, 0, &child[i]), 0);
    assert_int_equal(child_start(words, environ, log, NULL, 0, &more), EAGAIN);
    for (int i = 0; i < MOST; i++) {
        int n = i * 37 % MOST;
        assert_int_equal(child_wait(&child[n], 60, &status), CHILD_ENDED);
        assert_int_equal(status, 0);
        if (i < 3)
            assert_int_equal(child_start(words, environ, log, NULL, 0, &child[n]), 0);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(child_wait(&child[i * 37 % MOST], 60, &status), CHILD_ENDED);
    close(log);
}

/* A guarded child has one word more than it is given, of 16 at most. */
static void test_children_have_few_words(void **state)
{
    (void)state;
    char *words[18] = {"child", "6"};
    const struct child_limits limits = {9, 0};
    struct child child;
    int status, log = memfd_create("log", 0);
    for (int i = 2; i < 15; i++)
        words[i] = "more";
    assert_int_equal(child_start_guarded(words, environ, log, NULL, 0, &limits, &child), 0);
    assert_int_equal(child_wait(&child, 60, &status), CHILD_ENDED);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 9);
    words[15] = "more";
    assert_int_equal(child_start_guarded(words, environ, log, NULL, 0, &limits, &child), E2BIG);
    close(log);
}

/* How many bytes a file takes or gives at once, and every other time it is interrupted; SIZE_MAX: as files are. */
static size_t at_once = SIZE_MAX;

static bool interrupts(void)
{
    static unsigned calls;
    const bool now = at_once != SIZE_MAX && calls++ % 2;
    if (now)
        errno = EINTR;
    return now;
}

ssize_t pwrite(int file, const void *content, size_t bytes, off_t at)
{
    return interrupts() ? -1 : syscall(SYS_pwrite64, file, content, bytes < at_once ? bytes : at_once, at);
}

ssize_t pread(int file, void *content, size_t bytes, off_t at)
{
    return interrupts() ? -1 : syscall(SYS_pread64, file, content, bytes < at_once ? bytes : at_once, at);
}

/* What a kernel wrote comes back as it was where a file takes and gives a few bytes at a time. */
static void test_outputs_pass_in_pieces(void **state)
{
    const struct gb_kernel kernel = {.operation = GB_LAYER, .output = GB_FP32};
    const struct gb_shape shape = {3, 40, 16, 4, 2};
    const struct gb_fixture fixture = {.shape = shape, .layers = 2};
    const size_t count = (size_t)shape.tokens * shape.hidden;
    struct gb_outputs *sent, *got;
    struct gb_error error = {""};
    (void)state;
    assert_int_equal(gb_outputs_new(&shape, 2, GB_FP32, false, true, &sent, &error), GB_OK);
    for (size_t i = 0; i < 2 * count; i++) {
        ((float *)sent->layer[i / count].output)[i % count] = (float)i + 0.5f;
        sent->stack[i] = -(double)i / 3.0;
    }
    for (at_once = 1; at_once < 600; at_once = 7 * at_once + 4) {
        const int file = memfd_create("written", MFD_CLOEXEC);
        assert_true(file >= 0);
        if (written_send(file, &kernel, &fixture, sent, &error) != GB_OK ||
            written_receive(file, &kernel, &fixture, shape.tokens, true, &got, &error) != GB_OK)
            fail_msg("%zu bytes at once: %s", at_once, error.message);
        for (uint32_t l = 0; l < 2; l++)
            assert_memory_equal(got->layer[l].output, sent->layer[l].output, sizeof(float) * count);
        assert_memory_equal(got->stack, sent->stack, sizeof(double) * 2 * count);
        gb_outputs_free(got);
        for (int more = -1; more <= 1; more += 2) { /* bytes: outputs of another kernel, or of one that tampers */
            struct stat about;
            assert_true(!fstat(file, &about) && !ftruncate(file, about.st_size + (more < 0 ? -1 : 2)));
            assert_int_equal(written_receive(file, &kernel, &fixture, shape.tokens, true, &got, &error), GB_EFORMAT);
            assert_null(got);
        }
        close(file);
    }
    at_once = SIZE_MAX;
    gb_outputs_free(sent);
}

/* A folder that may not be written to or searched is made so, by one whom permissions bind. */
static void test_folders_are_opened(void **state)
{
    (void)state;
    static const mode_t modes[] = {0500, 0600, 0000};
    pid_t other = fork();
    assert_true(other >= 0);
    if (other == 0) {
        char own[] = "/tmp/gaugeblock-test-run-other-XXXXXX", path[64], file[80];
        struct stat about;
        bool good = (geteuid() != 0 || setuid(65534) == 0) && mkdtemp(own);
        for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
            snprintf(path, sizeof path, "%s/%zu", own, i);
            snprintf(file, sizeof file, "%s/record.json", path);
            good = good && mkdir(path, modes[i]) == 0;
            output_make_room(file);
            good = good && stat(path, &about) == 0 && (about.st_mode & 0777) == (modes[i] | 0700);
            rmdir(path);
        }
        rmdir(own);
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_int_equal(status, 0);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : 1;
}

static int delete_folder(void **state)
{
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(int count, char **words)
{
    if (count > 2 && (!strcmp(words[1], "child") || !strcmp(words[1], "guard")))
        return children(words + 2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_memory_is_fresh),
        cmocka_unit_test(test_large_memory_is_no_file),
        cmocka_unit_test(test_canaries_are_nan),
        cmocka_unit_test(test_addresses_are_kept),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_room_is_made),
        cmocka_unit_test(test_outputs_are_no_inputs),
        cmocka_unit_test(test_outputs_have_whole_paths),
        cmocka_unit_test(test_changes_are_described),
        cmocka_unit_test(test_changes_are_seen),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_any_text_is_json),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_roundings_are_declared),
        cmocka_unit_test(test_kernels_of_a_table),
        cmocka_unit_test(test_cuda_is_asked_for),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_children_leave_memory),
        cmocka_unit_test(test_what_was_seen),
        cmocka_unit_test(test_parcels),
        cmocka_unit_test(test_processes_tell_each_other),
        cmocka_unit_test(test_weights_fail),
        cmocka_unit_test(test_the_host_copies),
        cmocka_unit_test(test_the_host_reads),
        cmocka_unit_test(test_gate_files),
        cmocka_unit_test(test_children_have_what_is_theirs),
        cmocka_unit_test(test_children_end),
        cmocka_unit_test(test_children_are_forgotten),
        cmocka_unit_test(test_children_have_few_words),
        cmocka_unit_test(test_folders_are_opened),
        cmocka_unit_test(test_outputs_pass_in_pieces),
    };
    return cmocka_run_group_tests(tests, make_folder, delete_folder);
}

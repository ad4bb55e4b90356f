/* SPDX-License-Identifier: Apache-2.0 */
/* Faults in what is written, and in how the process behaves, around a correct layer. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/faults/faults.h"
#include "tests/support/fma32.h"

static size_t output_count(const struct gb_arguments *arguments)
{
    return (size_t)arguments->shape.tokens * arguments->shape.hidden;
}

/* The outputs' bits, [tokens, hidden]. */
static uint32_t *output_bits(const struct gb_arguments *arguments)
{
    return arguments->output;
}

/* The routing weight on the side where most models have it. */
enum gb_status run_weighs_output(const struct gb_arguments *arguments, struct gb_error *error)
{
    struct gb_arguments a = *arguments;
    a.apply_router_weight_on_input = 0;
    return fma32_layer(&a, error);
}

enum gb_status run_one_element(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum gb_status status = fma32_layer(arguments, error);
    output_bits(arguments)[output_count(arguments) / 2] ^= 1;
    return status;
}

/* An error that no single element shows. */
enum gb_status run_scaled(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum gb_status status = fma32_layer(arguments, error);
    for (size_t i = 0; i < output_count(arguments); i++)
        ((float *)arguments->output)[i] *= 1.0005f;
    return status;
}

enum gb_status run_zero_output(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum gb_status status = fma32_layer(arguments, error);
    memset(arguments->output, 0, output_count(arguments) * sizeof(float));
    return status;
}

/* The last token's row keeps what was in the buffer. */
enum gb_status run_unwritten_row(const struct gb_arguments *arguments, struct gb_error *error)
{
    struct gb_arguments elsewhere = *arguments;
    size_t count = output_count(arguments);
    float *output = malloc(count * sizeof(float)); /* [tokens, hidden] */
    if (!output)
        return gb_fail(error, GB_ENOMEM, "no memory for %zu outputs", count);
    elsewhere.output = output;
    enum gb_status status = fma32_layer(&elsewhere, error);
    memcpy(arguments->output, output, (count - arguments->shape.hidden) * sizeof(float));
    free(output);
    return status;
}

enum gb_status run_writes_past_end(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum gb_status status = fma32_layer(arguments, error);
    ((float *)arguments->output)[output_count(arguments)] = 1;
    return status;
}

enum gb_status run_writes_before_start(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum gb_status status = fma32_layer(arguments, error);
    ((float *)arguments->output)[-1] = 1;
    return status;
}

enum gb_status run_writes_past_end_unordered(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum gb_status status = run_unordered(arguments, error);
    ((float *)arguments->output)[output_count(arguments)] = 1;
    return status;
}

enum gb_status run_changes_input(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum gb_status status = fma32_layer(arguments, error);
    ((gb_bf16 *)arguments->x)[0].bits ^= 1;
    return status;
}

/* The sign of the last zero of the last expert's down, E2M1, which changes no result. */
enum gb_status run_changes_last_weight(const struct gb_arguments *arguments, struct gb_error *error)
{
    size_t codes, scales, globals;
    enum gb_status status = gb_weights_bytes(&arguments->down, &codes, &scales, &globals, error);
    if (status == GB_OK)
        status = fma32_layer(arguments, error);
    for (uint8_t *code = (uint8_t *)arguments->down.codes; status == GB_OK && codes-- > 0;)
        if ((code[codes] & 7) == 0) {
            code[codes] ^= 8;
            break;
        }
    return status;
}

enum gb_status run_nondeterministic(const struct gb_arguments *arguments, struct gb_error *error)
{
    static uint32_t runs;
    enum gb_status status = fma32_layer(arguments, error);
    output_bits(arguments)[0] ^= runs++ & 1;
    return status;
}

/* Right for as many runs as verify makes of a batch. */
enum gb_status run_wrong_later(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum { RIGHT_RUNS = 4 };
    static uint32_t runs;
    enum gb_status status = fma32_layer(arguments, error);
    output_bits(arguments)[output_count(arguments) / 2] ^= runs++ >= RIGHT_RUNS;
    return status;
}

/* Right in all five runs that are not timed, and then nothing. */
enum gb_status run_zero_later(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum { RIGHT_RUNS = 5 };
    static uint32_t runs;
    return runs++ < RIGHT_RUNS ? fma32_layer(arguments, error) : run_zero_output(arguments, error);
}

/* 5 ms, and right. */
enum gb_status run_slow(const struct gb_arguments *arguments, struct gb_error *error)
{
    usleep(5000);
    return fma32_layer(arguments, error);
}

/* A bit of what was in the output before. */
enum gb_status run_reads_unwritten(const struct gb_arguments *arguments, struct gb_error *error)
{
    uint32_t before = output_bits(arguments)[0];
    enum gb_status status = fma32_layer(arguments, error);
    output_bits(arguments)[0] ^= before & 1;
    return status;
}

/* Leaves a row as it was in every second run, beginning with the first. */
enum gb_status run_unwritten_once(const struct gb_arguments *arguments, struct gb_error *error)
{
    static uint32_t runs;
    return runs++ % 2 ? fma32_layer(arguments, error) : run_unwritten_row(arguments, error);
}

enum gb_status run_device_error(const struct gb_arguments *arguments, struct gb_error *error)
{
    (void)arguments;
    return gb_fail(error, GB_EDEVICE, "the device has had enough");
}

enum gb_status run_does_nothing(const struct gb_arguments *arguments, struct gb_error *error)
{
    (void)arguments;
    (void)error;
    return GB_OK;
}

enum gb_status run_nan_output(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum gb_status status = fma32_layer(arguments, error);
    output_bits(arguments)[output_count(arguments) / 2] = 0x7FC00000;
    return status;
}

enum gb_status run_crash(const struct gb_arguments *arguments, struct gb_error *error)
{
    volatile uint32_t *volatile nowhere = NULL;
    *nowhere = 1;
    return fma32_layer(arguments, error);
}

enum gb_status run_hang(const struct gb_arguments *arguments, struct gb_error *error)
{
    (void)arguments;
    (void)error;
    for (;;)
        pause();
}

enum gb_status run_exits(const struct gb_arguments *arguments, struct gb_error *error)
{
    (void)arguments;
    (void)error;
    exit(0);
}

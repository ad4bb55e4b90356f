/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgaugeblock-cuda loads on any machine, exports its two tables, refuses problems outside its domain with a reason
 * that names the number, and says why where there is no GPU. Needs none.
 *
 * usage: test_load LIBRARY
 */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "gaugeblock.h"

/* DeepSeek-V3's. */
static const struct gb_router router = {
    .size = sizeof router,
    .logits = GB_FP32,
    .bias = GB_ROUTER_BIAS_CHOICE,
    .score = GB_ROUTER_SCORE_SIGMOID,
    .nonfinite = GB_ROUTER_NONFINITE_KEPT,
    .groups = 8,
    .kept_groups = 4,
    .group_terms = 2,
    .weight = GB_ROUTER_WEIGHT_SCORE,
    .renormalise = GB_ROUTER_RENORMALISE_DIVIDE,
    .scale = 2.5f,
    .weights = GB_FP32,
    .side = GB_ROUTER_ON_OUTPUT,
};

static unsigned failures;

static void expect(bool good, const char *what, const char *message)
{
    if (!good) {
        printf("FAILED %s: %s\n", what, message);
        failures++;
    }
}

/* What the kernel's quantised activations are made by; NULL where they are bf16. */
static const struct gb_quantiser *rules_of(const struct gb_kernel *kernel)
{
    static const struct gb_quantiser nvfp4 = {
        .element = GB_E2M1, .scale = GB_SCALE_E4M3, .block_rows = 1, .block_columns = 16};
    static const struct gb_quantiser mxfp8 = {
        .element = GB_E4M3, .scale = GB_SCALE_E8M0, .block_rows = 1, .block_columns = 32};
    return kernel->activations == GB_NVFP4 ? &nvfp4 : kernel->activations == GB_MXFP8 ? &mxfp8 : NULL;
}

/* A kernel refuses `shape`, and the reason contains `number`. */
static void expect_refusal(const struct gb_kernel *kernel, struct gb_shape shape, const char *number)
{
    struct gb_error error = {"no message"};
    struct gb_problem problem = {.size = sizeof problem, .shape = shape, .weights = kernel->weights};
    enum gb_status status = kernel->supports(&problem, &error);
    expect(status == GB_EUNSUPPORTED && strstr(error.message, number), number, error.message);
}

static void test_domain(const struct gb_kernel *kernel)
{
    expect_refusal(kernel, (struct gb_shape){1, 2056, 512, 32, 8}, "hidden 2056");
    expect_refusal(kernel, (struct gb_shape){1, 2048, 520, 32, 8}, "intermediate 520");
    expect_refusal(kernel, (struct gb_shape){1, 2048, 512, 32, 17}, "top_k 17");
    expect_refusal(kernel, (struct gb_shape){1, 2048, 512, 7, 8}, "top_k 8");
    expect_refusal(kernel, (struct gb_shape){8192, 2048, 512, 32, 8}, "8192");
    expect_refusal(kernel, (struct gb_shape){0, 2048, 512, 32, 8}, "tokens 0");
    expect_refusal(kernel, (struct gb_shape){1, 1u << 24, 512, 32, 8}, "hidden 16777216");
    struct gb_error error = {"no message"};
    struct gb_problem other = {.size = sizeof other, .shape = {1, 2048, 512, 32, 8}, .weights = GB_FP32};
    expect(kernel->supports(&other, &error) == GB_EUNSUPPORTED, "another format", error.message);
    struct gb_problem biased = {
        .size = sizeof biased, .shape = {1, 2048, 512, 32, 8}, .weights = kernel->weights, .biased = 1};
    expect(kernel->supports(&biased, &error) == GB_EUNSUPPORTED && strstr(error.message, "bias"), "a bias",
           error.message);
    struct gb_problem activated = {.size = sizeof activated,
                                   .shape = {1, 2048, 512, 32, 8},
                                   .weights = kernel->weights,
                                   .activation = GB_SWIGLU_OAI};
    expect(kernel->supports(&activated, &error) == GB_EUNSUPPORTED && strstr(error.message, "SiLU"),
           "another activation", error.message);
    struct gb_problem weighed = {.size = sizeof weighed,
                                 .shape = {1, 2048, 512, 32, 2},
                                 .weights = kernel->weights,
                                 .apply_router_weight_on_input = 1};
    expect(kernel->supports(&weighed, &error) == GB_EUNSUPPORTED &&
               strstr(error.message, "apply_router_weight_on_input"),
           "a weighed input of two experts", error.message);
    struct gb_problem small = {.size = sizeof small.size, .shape = {1, 2048, 512, 32, 8}, .weights = kernel->weights};
    expect(kernel->supports(&small, &error) == GB_EINVAL, "a smaller struct", error.message);
}

/* FP8 with groups of 128, as vLLM's fused kernel makes them. */
static struct gb_quantisation fp8_groups(enum gb_operator operation)
{
    return (struct gb_quantisation){.size = sizeof(struct gb_quantisation),
                                    .input = GB_BF16,
                                    .rows = 3,
                                    .columns = 512,
                                    .input_columns = operation == GB_SILU_MUL_QUANTISE ? 1024 : 512,
                                    .silu = GB_SILU_EXACT,
                                    .activated = GB_FP32,
                                    .product = GB_FP32,
                                    .quantiser = {.element = GB_E4M3,
                                                  .scale = GB_SCALE_FP32,
                                                  .block_rows = 1,
                                                  .block_columns = 128,
                                                  .largest = 448.0f,
                                                  .bound = GB_BOUND_RATIO,
                                                  .ratio = GB_RATIO_DIVIDE,
                                                  .ratio_min = 1.0f / (448.0f * 512.0f),
                                                  .scale_rounding = GB_SCALE_NEAREST,
                                                  .quotient = GB_QUOTIENT_DIVIDE,
                                                  .element_nan = GB_NAN_IS_LARGEST},
                                    .bound = INFINITY};
}

/* What the fused kernel of vLLM rejects is rejected here, with the reason. */
static void test_quantise_domain(const struct gb_kernel *kernel)
{
    struct gb_quantisation q;
    struct gb_problem problem = {.size = sizeof problem, .quantise = &q};
    struct gb_error error = {"no message"};
#define REFUSED(CHANGE, WORD)                                                                                          \
    do {                                                                                                               \
        q = fp8_groups(kernel->operation);                                                                             \
        CHANGE;                                                                                                        \
        expect(kernel->supports(&problem, &error) == GB_EINVAL && strstr(error.message, WORD), #CHANGE,                \
               error.message);                                                                                         \
    } while (0)
    REFUSED(q.input_columns--, "wide");
    REFUSED(q.columns = 500; q.input_columns = kernel->operation == GB_SILU_MUL_QUANTISE ? 1000 : 500, "multiple");
    REFUSED(q.input = GB_FP32, "format");
    REFUSED(q.quantiser.element = 99, "element");
    REFUSED(q.quantiser.block_columns = 32, "groups of 32");
    REFUSED(q.quantiser.block_columns = 256, "256");
    REFUSED(q.quantiser.block_rows = 128, "128 x 128");
    REFUSED(q.quantiser.element = GB_INT8; q.quantiser.bound = GB_BOUND_NONE; q.bound = 1.0f, "INT8");
    REFUSED(q.bound = -1.0f, "bound");
    REFUSED(q.layout = 7, "layout");
    REFUSED(q.rows = 0, "0 rows");
    REFUSED(q.size--, "struct gb_quantisation");
    if (kernel->operation == GB_SILU_MUL_QUANTISE) {
        REFUSED(q.silu = 0, "silu");
        REFUSED(q.product = GB_FP16, "roundings");
    }
#undef REFUSED
    problem.quantise = NULL;
    expect(kernel->supports(&problem, &error) == GB_EINVAL, "no struct gb_quantisation", error.message);
    q = fp8_groups(kernel->operation);
    struct gb_arguments a = {.size = sizeof a, .quantise = &q};
    expect(kernel->run(&a, &error) == GB_EINVAL && strstr(error.message, "NULL"), "no buffers", error.message);
    a.quantise = NULL;
    expect(kernel->run(&a, &error) == GB_EINVAL, "nothing asked for", error.message);
}

/* run() refuses arguments that lack buffers, before it touches a device. */
static void test_arguments(const struct gb_kernel *kernel)
{
    struct gb_error error = {"no message"};
    struct gb_arguments a = {.size = sizeof a,
                             .shape = {1, 2048, 512, 32, 8},
                             .router = kernel->flags & GB_ROUTES ? &router : NULL,
                             .activation_rules = rules_of(kernel)};
    expect(kernel->run(&a, &error) == GB_EINVAL, "no buffers", error.message);
    if (kernel->flags & GB_ROUTES) {
        a.router = NULL;
        expect(kernel->run(&a, &error) == GB_EUNSUPPORTED, "no recipe", error.message);
        return; /* the rest is asked of its layer alone */
    }
    a.activation = GB_SWIGLU_OAI;
    expect(kernel->run(&a, &error) == GB_EUNSUPPORTED, "another activation", error.message);
    const float bias = 0;
    a.activation = GB_SILU;
    a.down_bias = &bias;
    expect(kernel->run(&a, &error) == GB_EUNSUPPORTED, "a bias", error.message);
    a.size = sizeof a.size;
    expect(kernel->run(&a, &error) == GB_EINVAL, "a smaller struct", error.message);
}

/* The router's domain, which is not the layer's. */
static void test_route(const struct gb_kernel *kernel, enum gb_status present)
{
    static const struct {
        struct gb_shape shape;
        const char *reason;
    } refused[] = {{{1, 2052, 1, 256, 8}, "hidden 2052"},
                   {{1, 2048, 1, 7, 8}, "top_k 8"},
                   {{0, 2048, 1, 256, 8}, "tokens 0"},
                   {{65536, 2048, 1, 256, 8}, "65536 tokens"},
                   {{1, 2048, 1, 257, 8}, "257 experts"}};
    struct gb_error error = {"no message"};
    struct gb_problem problem = {
        .size = sizeof problem, .shape = {4096, 7168, 1, 256, 8}, .weights = GB_BF16, .router = &router};
    expect(kernel->supports(&problem, &error) == present, kernel->name, error.message);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        problem.shape = refused[i].shape;
        expect(kernel->supports(&problem, &error) == GB_EUNSUPPORTED && strstr(error.message, refused[i].reason),
               refused[i].reason, error.message);
    }
    problem.shape = (struct gb_shape){1, 2048, 1, 256, 8};
    struct gb_router newer = router;
    newer.score = GB_ROUTER_SCORE_SIGMOID + 1;
    problem.router = &newer;
    expect(kernel->supports(&problem, &error) == GB_EUNSUPPORTED && strstr(error.message, "does not know"),
           "an unknown score", error.message);
    problem.router = NULL;
    expect(kernel->supports(&problem, &error) == GB_EUNSUPPORTED, "no recipe", error.message);
    problem.size = GB_PROBLEM_LEAST;
    expect(kernel->supports(&problem, &error) == GB_EINVAL, "a smaller struct", error.message);
    struct gb_arguments a = {.size = sizeof a, .shape = {1, 2048, 1, 256, 8}, .router = &router};
    expect(kernel->run(&a, &error) == GB_EINVAL, "no buffers", error.message);
}

/* The domain of dispatch and combine. */
static void test_exchange(const struct gb_kernel *kernel, enum gb_status present)
{
    const bool sums = kernel->operation == GB_COMBINE;
    const struct gb_exchange good = {.size = sizeof good,
                                     .ranks = 1,
                                     .tokens = 3,
                                     .hidden = 512,
                                     .experts = 32,
                                     .top_k = 8,
                                     .global_scale = 1.0f,
                                     .input = GB_BF16,
                                     .quantiser = sums ? (struct gb_quantiser){0} : fp8_groups(GB_QUANTISE).quantiser,
                                     .accumulation = sums ? GB_AT_SENDER_NODE : 0,
                                     .ranks_per_node = 1};
    struct gb_exchange x = good;
    struct gb_problem problem = {.size = sizeof problem, .exchange = &x};
    struct gb_error error = {"no message"};
    expect(kernel->supports(&problem, &error) == present, kernel->name, error.message);
#define UNSUPPORTED(CHANGE, WORD)                                                                                      \
    do {                                                                                                               \
        x = good;                                                                                                      \
        CHANGE;                                                                                                        \
        expect(kernel->supports(&problem, &error) == GB_EUNSUPPORTED && strstr(error.message, WORD), #CHANGE,          \
               error.message);                                                                                         \
    } while (0)
    UNSUPPORTED(x.hidden = 520, "hidden 520");
    UNSUPPORTED(x.tokens = 0, "at least 1");
    UNSUPPORTED(x.top_k = 17, "top_k 17");
    UNSUPPORTED(x.tokens = 8192, "65536");
    UNSUPPORTED(x.experts = 16385, "16385");
    UNSUPPORTED(x.one_rank = 1, "one rank");
    if (sums) {
        UNSUPPORTED(x.input = GB_FP16, "format");
        UNSUPPORTED(x.accumulation = 9, "accumulation 9");
        UNSUPPORTED(x.ranks_per_node = 0, "accumulation");
    } else {
        UNSUPPORTED(x.quantiser.block_columns = 32, "groups of 32");
        UNSUPPORTED(x.quantiser.element = 99, "element");
    }
#undef UNSUPPORTED
    x = good;
    x.size--;
    expect(kernel->supports(&problem, &error) == GB_EINVAL, "a smaller struct", error.message);
    problem.exchange = NULL;
    expect(kernel->supports(&problem, &error) == GB_EINVAL, "no struct gb_exchange", error.message);
    x = good;
    struct gb_arguments a = {.size = sizeof a, .exchange = &x};
    void *prepared = NULL;
    expect(kernel->run(&a, &error) == GB_EINVAL && strstr(error.message, "NULL"), "no buffers", error.message);
    expect(kernel->prepare(&a, &prepared, &error) == GB_EINVAL && !prepared, "no buffers", error.message);
    a.exchange = NULL;
    expect(kernel->run(&a, &error) == GB_EINVAL, "nothing asked for", error.message);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_load LIBRARY\n");
        return 2;
    }
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("FAILED %s\n", dlerror());
        return 1;
    }
    gb_kernels_function kernels = (gb_kernels_function)dlsym(library, GB_KERNELS_SYMBOL);
    gb_device_function device = (gb_device_function)dlsym(library, GB_DEVICE_SYMBOL);
    gb_timer_function timer = (gb_timer_function)dlsym(library, GB_TIMER_SYMBOL);
    if (!kernels || !device || !timer) {
        printf("FAILED: %s, %s or %s is not exported\n", GB_KERNELS_SYMBOL, GB_DEVICE_SYMBOL, GB_TIMER_SYMBOL);
        return 1;
    }
    expect(timer()->size == sizeof(struct gb_timer), "size of struct gb_timer", "differs");
    const struct gb_kernel_table *table = kernels();
    expect(table->abi_version == GB_ABI_VERSION && device()->abi_version == GB_ABI_VERSION, "ABI version", "differs");
    expect(table->kernel_size == sizeof(struct gb_kernel), "size of struct gb_kernel", "differs");
    expect(table->count > 0, "kernels", "none");
    struct gb_error error = {""};
    char text[256] = "";
    enum gb_status present = device()->describe(text, sizeof text, &error);
    expect(present == GB_OK || (present == GB_EUNSUPPORTED && error.message[0]), "describe", error.message);
    printf("device: %s\n", present == GB_OK ? text : error.message);
    for (uint32_t k = 0; k < table->count; k++) {
        const struct gb_kernel *kernel = &table->kernels[k];
        struct gb_quantisation quantise = fp8_groups(kernel->operation);
        struct gb_problem problem = {.size = sizeof problem,
                                     .shape = {1, 2048, 512, 32, 8},
                                     .weights = kernel->weights,
                                     .router = kernel->flags & GB_ROUTES ? &router : NULL,
                                     .quantise = &quantise,
                                     .activation_rules = kernel->operation < GB_ROUTE ? rules_of(kernel) : NULL};
        if (kernel->operation == GB_ROUTE) {
            test_route(kernel, present);
            continue;
        }
        if (kernel->operation == GB_DISPATCH || kernel->operation == GB_COMBINE) {
            test_exchange(kernel, present);
            continue;
        }
        struct gb_error reason = {""};
        enum gb_status status = kernel->supports(&problem, &reason);
        expect(status == present, kernel->name, reason.message);
        expect(status == GB_OK || reason.message[0], kernel->name, "no reason given");
        printf("%s: %s\n", kernel->name, status == GB_OK ? "supported" : reason.message);
        if (kernel->operation >= GB_QUANTISE) {
            test_quantise_domain(kernel);
            continue;
        }
        test_domain(kernel);
        test_arguments(kernel);
    }
    printf("%s\n", failures ? "FAILED" : "passed");
    return failures ? 1 : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/compute_truth.h"
#include "harness/program/command.h"
#include "harness/judge/check_exact.h"
#include "harness/program/make.h"
#include "harness/program/make_exchange.h"
#include "harness/program/make_quantise.h"
#include "harness/program/make_suite.h"
#include "harness/program/models.h"
#include "harness/run/operators.h"
#include "harness/run/verdict.h"
#include "quant/quant.h"

struct make_options {
    const char *path;
    const struct model *model; /* NULL: --shape */
    struct gb_shape shape;
    const char *shape_text;
    struct make_quantise quantise; /* and --operator */
    struct make_exchange exchange;
    const char *of_layers; /* the first option that was given and goes with layers alone; and */
    const char *of_tokens; /* with layers or ranks */
    enum gb_format format, activations;
    const char *activation_recipe; /* a name of gb_recipes; NULL: the default of activations */
    const char *data;              /* a name of gb_generators, without its version or with it */
    const char *routing;           /* a name of gb_routing_kinds */
    const char *router;            /* a name of gb_router_recipes; NULL: the model's, or the default */
    uint32_t layers;
    uint64_t seed;
    bool generated;
    bool suite;
    const char *of_one; /* the first option that was given and that every problem of a suite has for itself */
    int kept;           /* OPTION_STORED or OPTION_GENERATED, whichever was given; 0: neither */
};

enum {
    OPTION_SHAPE = 256,
    OPTION_FORMAT,
    OPTION_ACTIVATIONS,
    OPTION_ACTIVATION_RECIPE,
    OPTION_LAYERS,
    OPTION_TOKENS,
    OPTION_SEED,
    OPTION_DATA,
    OPTION_STORED,
    OPTION_MODEL,
    OPTION_ROUTING,
    OPTION_ROUTER,
    OPTION_GENERATED,
    OPTION_SUITE
};

static const struct argp_option options[] = {
    {"model", OPTION_MODEL, "NAME", 0, "the shape of a published model (gaugeblock list models)", 0},
    {"shape", OPTION_SHAPE, "E,K,H,I", 0,
     "in place of --model: experts, top-k, hidden and intermediate size; of a quantiser: rows,columns, 64,512 by "
     "default",
     0},
    {"suite", OPTION_SUITE, NULL, 0, "write a folder of small problems, what CI should run (docs/gates.md)", 0},
    {"format", OPTION_FORMAT, "FORMAT", 0, "weight format (gaugeblock list formats); nvfp4 by default", 0},
    {"activations", OPTION_ACTIVATIONS, "FORMAT", 0,
     "what activations are multiplied as: bf16 (default), or quantised to nvfp4, mxfp8 or fp8", 0},
    {"activation-recipe", OPTION_ACTIVATION_RECIPE, "RECIPE", 0,
     "with --activations: the rule that quantises them (gaugeblock list recipes); nvfp4.trtllm/1, "
     "mxfp8.rceil/1 or fp8g128.vllm/1 by default",
     0},
    {"layers", OPTION_LAYERS, "L", 0, "layers, 1 by default", 0},
    {"tokens", OPTION_TOKENS, "T", 0, "tokens, 8 by default", 0},
    {"data", OPTION_DATA, "KIND", 0,
     "how values are distributed: gaussian (default), ties, edge, scales, nonfinite, exact, wide, sparse or "
     "shared (docs/fixtures.md)",
     0},
    {"routing", OPTION_ROUTING, "KIND", 0,
     "how tokens choose experts: router (default), uniform, skewed, hot, half, holes, loads, boundary or equal "
     "(docs/fixtures.md)",
     0},
    {"router", OPTION_ROUTER, "RECIPE", 0, "the router's rule (gaugeblock list routers); a model has its own", 0},
    {"seed", OPTION_SEED, "N", 0, "seed of every value, 1 by default", 0},
    {"stored", OPTION_STORED, NULL, 0, "keep the weights in the file, and a stack for drift (default)", 0},
    {"generated", OPTION_GENERATED, NULL, 0,
     "keep only the seed, and make the weights of the experts in use on reading", 0},
    MAKE_QUANTISE_OPTIONS,
    MAKE_EXCHANGE_OPTIONS,
    {0},
};

/* Remembers an option that a problem of a quantiser does not have. */
static void note_layers(struct make_options *o, int key)
{
    bool tokens = key == OPTION_MODEL || key == OPTION_TOKENS || key == OPTION_ROUTING;
    const char **first = tokens ? &o->of_tokens : &o->of_layers;
    for (size_t i = 0; options[i].name && !*first; i++)
        if (options[i].key == key && key >= OPTION_SHAPE && key < MAKE_OPERATOR && key != OPTION_SHAPE &&
            key != OPTION_DATA && key != OPTION_SEED && key != OPTION_SUITE)
            *first = options[i].name;
}

/* What goes together, of a problem of another operator than a layer. */
static void check_operator(struct argp_state *state, struct make_options *o)
{
    bool ranks = o->quantise.operator&& o->quantise.operator->over_ranks;
    make_quantise_check(state, &o->quantise);
    make_exchange_check(state, o->quantise.operator, & o->exchange);
    if (o->quantise.operator&& o->of_layers)
        usage_error(state, "--%s goes with problems of layers, not with --operator", o->of_layers);
    if (o->quantise.operator&& !ranks && o->of_tokens)
        usage_error(state, "--%s goes with problems of layers, or of dispatch and combine", o->of_tokens);
    if (!ranks)
        return;
    if (o->suite)
        usage_error(state, "--suite: there is none of %s; make its problems one by one", o->quantise.operator->name);
    if (o->shape_text)
        option_shape(state, o->shape_text, 3, &o->shape);
    if ((o->model != NULL) == (o->shape.experts != 0))
        usage_error(state, "give either --model or --shape experts,top_k,hidden");
}

/* The shape of the model, if there is one, with the tokens that were asked for. */
static void take_model(struct make_options *o)
{
    uint32_t tokens = o->shape.tokens;
    if (o->model)
        o->shape = o->model->shape;
    o->shape.tokens = tokens;
}

/* Remembers an option that a suite does not take. */
static void note_one(struct make_options *o, int key)
{
    static const int own[] = {OPTION_SHAPE, OPTION_MODEL,   OPTION_LAYERS, OPTION_TOKENS,
                              OPTION_DATA,  OPTION_ROUTING, OPTION_STORED, OPTION_GENERATED};
    for (size_t i = 0; i < sizeof own / sizeof *own && !o->of_one; i++)
        for (size_t n = 0; options[n].name && own[i] == key; n++)
            if (options[n].key == key)
                o->of_one = options[n].name;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct make_options *o = state->input;
    note_layers(o, key);
    note_one(o, key);
    switch (key) {
    case OPTION_SHAPE:
        o->shape_text = argument;
        return 0;
    case OPTION_MODEL:
        o->model = model_find(argument);
        if (!o->model)
            usage_error(state, "--model %s: unknown; see gaugeblock list models", argument);
        return 0;
    case OPTION_FORMAT:
        if (!gb_format_parse(argument, &o->format))
            usage_error(state, "--format %s: gaugeblock list formats prints those known", argument);
        return 0;
    case OPTION_ACTIVATIONS:
        if (!gb_format_parse(argument, &o->activations))
            usage_error(state, "--activations %s: there are bf16, nvfp4, mxfp8 and fp8", argument);
        return 0;
    case OPTION_ACTIVATION_RECIPE:
        o->activation_recipe = argument;
        return 0;
    case OPTION_LAYERS:
        o->layers = (uint32_t)option_number(state, "layers", argument, 1, 1024);
        return 0;
    case OPTION_TOKENS:
        o->shape.tokens = (uint32_t)option_number(state, "tokens", argument, 1, 1 << 16);
        return 0;
    case OPTION_SEED:
        o->seed = option_number(state, "seed", argument, 0, UINT64_MAX);
        return 0;
    case OPTION_DATA:
        o->data = argument;
        return 0;
    case OPTION_ROUTING:
        o->routing = argument;
        return 0;
    case OPTION_ROUTER:
        if (!argument[0])
            usage_error(state, "--router: name a rule (gaugeblock list routers), or leave it out");
        o->router = argument;
        return 0;
    case OPTION_SUITE:
        o->suite = true;
        return 0;
    case OPTION_STORED:
    case OPTION_GENERATED:
        if (o->kept && o->kept != key)
            usage_error(state, "give either --stored or --generated");
        o->kept = key;
        o->generated = key == OPTION_GENERATED;
        return 0;
    case ARGP_KEY_ARG:
        if (o->path)
            usage_error(state, "one file at a time");
        o->path = argument;
        return 0;
    case ARGP_KEY_END:
        if (!o->path)
            usage_error(state, "name the file to write");
        check_operator(state, o);
        if (o->suite && o->of_one)
            usage_error(state, "--%s: the problems of a suite have their own; give it without --suite", o->of_one);
        take_model(o);
        if (o->quantise.operator)
            return 0;
        if (o->shape_text)
            option_shape(state, o->shape_text, 4, &o->shape);
        if (!o->suite && (o->model != NULL) == (o->shape_text != NULL))
            usage_error(state, "give either --model or --shape");
        if (o->activations == GB_BF16 && o->activation_recipe)
            usage_error(state, "--activation-recipe goes with --activations nvfp4, mxfp8 or fp8");
        return 0;
    default:
        if (make_exchange_parse(key, argument, state, &o->exchange) == 0)
            return 0;
        return make_quantise_parse(key, argument, state, &o->quantise);
    }
}

/* The generator of this name, given with its version or without; `exact` depends on the activations. */
static const struct gb_generator *find_generator(const struct make_options *o)
{
    const char *name = !strcmp(o->data, "exact") && o->activations != GB_BF16 ? "exact/2" : o->data;
    size_t count, length = strlen(name);
    const struct gb_generator *all = gb_generators(&count);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(all[i].name, name) || (!strncmp(all[i].name, name, length) && all[i].name[length] == '/'))
            return &all[i];
    return NULL;
}

static bool routing_known(const char *name)
{
    size_t count;
    const struct gb_routing_kind *all = gb_routing_kinds(&count);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(all[i].name, name))
            return true;
    return false;
}

static enum gb_status matrix(void *fixture, uint32_t layer, uint32_t expert, enum gb_projection projection,
                             float *values, struct gb_error *error)
{
    return gb_generate_matrix(fixture, layer, expert, projection, values, error);
}

static enum gb_status expert(void *fixture, uint32_t layer, uint32_t e, struct gb_error *error)
{
    return gb_generate_expert(fixture, layer, e, error);
}

/* "": the default. */
static const char *router_name(const struct make_options *o)
{
    return o->router ? o->router : o->model ? o->model->router : "";
}

/* The router's rule is known and fits the shape. */
static enum gb_status check_router(const struct make_options *o, bool *weighs_input, struct gb_error *error)
{
    const char *name = router_name(o);
    const struct gb_router_recipe *recipe = name[0] ? gb_router_recipe_find(name) : gb_router_recipe_default(true);
    if (!recipe)
        return gb_fail(error, GB_EINVAL, "--router %s: unknown; see gaugeblock list routers", name);
    if (o->shape.experts % recipe->router.groups)
        return gb_fail(error, GB_EINVAL, "--router %s: its %u groups do not divide %u experts", name,
                       recipe->router.groups, o->shape.experts);
    *weighs_input = recipe->router.side == GB_ROUTER_ON_INPUT;
    if (*weighs_input && o->activations != GB_BF16)
        return gb_fail(error, GB_EINVAL,
                       "--router %s: it weighs the experts' input, which no contract with %s activations does", name,
                       gb_format_name(o->activations));
    if (*weighs_input && o->shape.top_k != 1)
        return gb_fail(
            error, GB_EINVAL,
            "--router %s: it weighs the experts' input, so that several experts of a token would need inputs of "
            "their own; top_k is %u, not 1",
            name, o->shape.top_k);
    return GB_OK;
}

static enum gb_status fill(struct gb_fixture *f, const struct make_options *o, bool weighs_input,
                           struct gb_error *error)
{
    bool routed = strcmp(o->routing, "router") != 0;
    struct weight_source source = {f, matrix, expert, NULL};
    f->apply_router_weight_on_input = weighs_input;
    f->norm_topk_prob = true;
    f->rms_norm_epsilon = 1e-6;
    f->seed = o->seed;
    snprintf(f->router, sizeof f->router, "%s", router_name(o));
    const struct gb_router *router = gb_fixture_router(f);
    if (f->router[0])
        f->norm_topk_prob =
            router->renormalise != GB_ROUTER_RENORMALISE_NONE || router->weight == GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN;
    snprintf(f->recipe, sizeof f->recipe, "%s", gb_recipe_default(o->format)->name);
    snprintf(f->contract, sizeof f->contract, "%s.bf16." GB_ORDER_FMA32, gb_format_name(o->format));
    snprintf(f->generator, sizeof f->generator, "%s", find_generator(o)->name);
    if (o->model)
        snprintf(f->source, sizeof f->source, "--model %s --routing %s", o->model->name, o->routing);
    else
        snprintf(f->source, sizeof f->source, "--shape %u,%u,%u,%u --routing %s", o->shape.experts, o->shape.top_k,
                 o->shape.hidden, o->shape.intermediate, o->routing);
    enum gb_status status = GB_OK;
    if (o->activations != GB_BF16)
        status = activations_choose(f, o->activations, o->activation_recipe, error);
    if (status == GB_OK && router->bias != GB_ROUTER_BIAS_NONE)
        status = gb_fixture_add(f, GB_EXTRA_ROUTER_BIAS, error);
    if (status == GB_OK)
        status = gb_generate_inputs(f, error);
    if (status == GB_OK && routed)
        status = gb_generate_routing(f, o->routing, error);
    if (status == GB_OK)
        status = build_fixture(f, &source, routed, error);
    return status == GB_OK ? exact_check(f, error) : status;
}

static enum gb_status make(const struct make_options *o, struct gb_fixture **fixture, struct gb_error *error)
{
    uint32_t block = gb_format_multiple(o->format);
    if (o->shape.hidden % block || o->shape.intermediate % block)
        return gb_fail(error, GB_EINVAL, "hidden %u and intermediate %u must be multiples of %u for %s",
                       o->shape.hidden, o->shape.intermediate, block, gb_format_name(o->format));
    if (!find_generator(o))
        return gb_fail(error, GB_EINVAL,
                       "--data %s: there are gaussian, ties, edge, scales, nonfinite, exact, wide, sparse and shared",
                       o->data);
    if (!routing_known(o->routing))
        return gb_fail(error, GB_EINVAL,
                       "--routing %s: there are router, uniform, skewed, hot, half, holes, loads, boundary and equal",
                       o->routing);
    if (!strcmp(find_generator(o)->name, "nonfinite/1") && !strcmp(o->routing, "router"))
        return gb_fail(error, GB_EINVAL, "--data nonfinite: a router has no choice for NaN; add --routing uniform");
    if (!strncmp(find_generator(o)->name, "exact/", 6) && !strcmp(o->routing, "router"))
        return gb_fail(error, GB_EINVAL, "--data exact: a router's weights are not exact; add --routing uniform");
    if (!strcmp(find_generator(o)->name, "exact/2") && o->activations == GB_BF16)
        return gb_fail(error, GB_EINVAL,
                       "--data exact/2: goes with --activations nvfp4, mxfp8 or fp8; exact/1 with bf16");
    if (!strcmp(find_generator(o)->name, "exact/1") && o->activations != GB_BF16)
        return gb_fail(error, GB_EINVAL, "--data exact/1: goes with bf16 activations; exact/2 with quantised ones");
    if (!strcmp(find_generator(o)->name, "nonfinite/1") && o->activations != GB_BF16)
        return gb_fail(error, GB_EINVAL, "--data nonfinite: goes with bf16 activations, codes of NaN differ by recipe");
    /* The stack routes by the router, which other data kinds would drive into overflow. */
    bool stack = !o->generated && !strcmp(find_generator(o)->name, "gaussian/1") && !strcmp(o->routing, "router");
    bool weighs_input = false;
    enum gb_status status = check_router(o, &weighs_input, error);
    if (status != GB_OK)
        return status;
    stack &= !weighs_input; /* a stack's layers weigh their outputs */
    status = o->generated ? gb_fixture_new_generated(&o->shape, o->layers, o->format, fixture, error)
                          : gb_fixture_new(&o->shape, o->layers, o->format, true, stack, false, fixture, error);
    if (status == GB_OK)
        status = fill(*fixture, o, weighs_input, error);
    return status == GB_OK ? gb_fixture_write(o->path, *fixture, error) : status;
}

/* The folder of o->path. The rule of a router that is unknown is refused with the first problem. */
static int suite(const struct make_options *o, int argc, char **argv, int (*make_one)(int argc, char **argv))
{
    const struct gb_router_recipe *router = gb_router_recipe_find(router_name(o));
    const struct gb_recipe *recipe = o->activation_recipe ? gb_recipe_find(o->activation_recipe) : NULL;
    struct make_suite s = {.folder = o->path,
                           .operation = o->quantise.operator? o->quantise.operator->operation : (enum gb_operator)0,
                           .format = o->format,
                           .activations = o->activations,
                           .exact = !o->activation_recipe || recipe == gb_recipe_default_activations(o->activations),
                           .router = &(router ? router : gb_router_recipe_default(true))->router,
                           .argc = argc,
                           .argv = argv,
                           .make = make_one };
    return make_suite(&s);
}

static int run_make(int argc, char **argv);

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "OUT.h5",
    .doc = "Generate a problem: weights, inputs, routing and truth; values for a quantiser; or tokens of ranks.\v"
           "Examples: a layer of Qwen3-Next's shape, a quantiser, a combine over 8 ranks:\n"
           "  gaugeblock make qwen3-next.h5 --model qwen3-next-80b-a3b --tokens 32 \\\n"
           "      --generated\n"
           "  gaugeblock make quantiser.h5 --operator quantise \\\n"
           "      --recipe nvfp4.trtllm/1 --data ties\n"
           "  gaugeblock make combine.h5 --operator combine --shape 256,8,7168 \\\n"
           "      --ranks 8 --tokens 4\n"
           "The problems that a kernel should pass in CI, in a folder:\n"
           "  gaugeblock make suite --suite",
};

/* say: what was made. */
static int make_one(int argc, char **argv, bool say)
{
    struct make_options o = {.format = GB_NVFP4,
                             .activations = GB_BF16,
                             .layers = 1,
                             .seed = 1,
                             .data = "gaussian",
                             .routing = "router",
                             .shape = {.tokens = 8}};
    struct gb_fixture *fixture = NULL;
    struct gb_error error;
    enum gb_status status;
    command_parse(&argp, argc, argv, &o);
    if (o.suite)
        return suite(&o, argc, argv, run_make);
    if (o.quantise.operator&& o.quantise.operator->over_ranks) {
        const struct make_exchange_problem p = {o.quantise.operator, o.quantise.recipe, o.shape, o.data,
                                                strcmp(o.routing, "router") ? o.routing : "uniform", o.seed};
        status = make_exchange(&p, &o.exchange, &fixture, &error);
        status = status == GB_OK ? gb_fixture_write(o.path, fixture, &error) : status;
    } else if (o.quantise.operator) {
        o.quantise.shape = o.shape_text;
        status = make_quantise(&o.quantise, o.data, o.seed, &fixture, &error);
        status = status == GB_OK ? gb_fixture_write(o.path, fixture, &error) : status;
    } else {
        status = make(&o, &fixture, &error);
    }
    if (status == GB_OK && say && o.quantise.operator)
        printf("%s: %s by %s, sha256 %s\n", o.path, operator_name(fixture->operation), fixture->recipe,
               fixture->sha256);
    else if (status == GB_OK && say)
        printf("%s: %s, sha256 %s\n", o.path, fixture->contract, fixture->sha256);
    gb_fixture_free(fixture);
    return status == GB_OK ? EXIT_PASS : command_error("make", "%s", error.message);
}

static int run_make(int argc, char **argv)
{
    return make_one(argc, argv, true);
}

int make_quietly(int argc, char **argv)
{
    return make_one(argc, argv, false);
}

const struct command command_make = {"make", run_make, &argp, "generate a problem"};

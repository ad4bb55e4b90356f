/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/explain/gate_functions.h"

#include <math.h>

static double sigmoid(double v)
{
    return 1.0 / (1.0 + exp(-v));
}

double gate_function(enum finding_function function, double g, double u)
{
    const double silu = g * sigmoid(g), positive = fmax(g, 0.0);
    switch (function) {
    case FUNCTION_PRODUCT:
        return g * u;
    case FUNCTION_RELU:
        return positive * u;
    case FUNCTION_RELU_SQUARE:
        return positive * positive * u;
    case FUNCTION_GELU:
        return 0.5 * g * (1.0 + erf(g * sqrt(0.5))) * u;
    case FUNCTION_GELU_TANH:
        return 0.5 * g * (1.0 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u; /* sqrt(2 / pi) */
    case FUNCTION_GELU_QUICK:
        return g * sigmoid(1.702 * g) * u;
    case FUNCTION_SIGMOID:
        return sigmoid(g) * u;
    case FUNCTION_TANH:
        return tanh(g) * u;
    case FUNCTION_HARD_SWISH:
        return g * fmin(fmax(g + 3.0, 0.0), 6.0) / 6.0 * u;
    case FUNCTION_SILU:
        return silu;
    case FUNCTION_SUM:
        return silu + u;
    case FUNCTION_OF_PRODUCT:
        return g * u * sigmoid(g * u);
    case FUNCTION_TWICE:
        return silu * sigmoid(silu) * u;
    default:
        return g * sigmoid(-g) * u;
    }
}

const char *gate_function_name(enum finding_function function)
{
    static const char *const names[FUNCTIONS] = {[FUNCTION_PRODUCT] = "gate times up, without SiLU",
                                                 [FUNCTION_RELU] = "ReLU in place of SiLU",
                                                 [FUNCTION_RELU_SQUARE] = "squared ReLU in place of SiLU",
                                                 [FUNCTION_GELU] = "GELU in place of SiLU",
                                                 [FUNCTION_GELU_TANH] = "GELU by tanh in place of SiLU",
                                                 [FUNCTION_GELU_QUICK] = "sigmoid of 1.702 gate",
                                                 [FUNCTION_SIGMOID] = "sigmoid in place of SiLU",
                                                 [FUNCTION_TANH] = "tanh in place of SiLU",
                                                 [FUNCTION_HARD_SWISH] = "hard swish",
                                                 [FUNCTION_SILU] = "silu(gate), without up",
                                                 [FUNCTION_SUM] = "silu(gate) plus up",
                                                 [FUNCTION_OF_PRODUCT] = "SiLU of gate times up",
                                                 [FUNCTION_TWICE] = "SiLU applied twice",
                                                 [FUNCTION_NEGATED] = "sigmoid(-gate) in SiLU"};
    return names[function];
}

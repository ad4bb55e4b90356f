/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of published MoE layers, by name. */
#ifndef GB_HARNESS_PROGRAM_MODELS_H
#define GB_HARNESS_PROGRAM_MODELS_H

#include "gaugeblock.h"

struct model {
    const char *name;
    struct gb_shape shape; /* of the routed experts of one MoE layer; tokens = 0 */
    const char *router;    /* its recipe, of gb_router_recipes; "": gb_router_recipe_default(true) */
    const char *source;
};

const struct model *models(size_t *count);
/* NULL if there is none of this name. */
const struct model *model_find(const char *name);

#endif

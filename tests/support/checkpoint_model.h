/* SPDX-License-Identifier: Apache-2.0 */
/* A folder with a small model as checkpoints have it, in every naming and type. */
#ifndef GB_TESTS_SUPPORT_CHECKPOINT_MODEL_H
#define GB_TESTS_SUPPORT_CHECKPOINT_MODEL_H

#include "fixtures/fixtures.h"
#include "tests/support/check.h"

enum { EXPERTS = 3, HIDDEN = 32, INTERMEDIATE = 16, LAYERS = 2, MATRIX = HIDDEN * INTERMEDIATE };

extern char model_folder[];

struct model {
    const char *type;
    enum gb_dtype dtype;
    bool stacked;
    bool single; /* one file without an index */
};

/* A file in the folder, until the next call. */
const char *model_file(const char *name);
void model_write_text(const char *name, const char *text);
void model_empty_folder(void);
/* Element i of tensor number `tensor`, exact in bf16 and fp16. */
float model_value(size_t tensor, uint64_t i);
/* config.json; more: further keys, each with a comma before it. */
void model_write_config(const char *type, const char *more);
/* Fills the folder with a model. without: a tensor to leave out, or NULL. */
void model_write(const struct model *model, const char *without);
/* Of a group of cmocka's tests. */
int model_set_up(void **state);
int model_tear_down(void **state);

#endif

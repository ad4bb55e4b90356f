/* SPDX-License-Identifier: Apache-2.0 */
/* Studies as text, Markdown and CSV. */
#ifndef GB_HARNESS_REPORT_STUDY_REPORT_H
#define GB_HARNESS_REPORT_STUDY_REPORT_H

#include <stdio.h>

#include "harness/study/study.h"

/* Tables for people: of a drift, or of closeness by its kind; markdown: as Markdown. GB_ENOMEM. */
enum gb_status study_print(FILE *stream, const struct study *study, bool markdown, struct gb_error *error);
/* Every figure: case, model, weights, mode, truth, layer, path, figure, value, low, high. GB_ENOMEM. */
enum gb_status study_csv(FILE *stream, const struct study *study, struct gb_error *error);

#endif

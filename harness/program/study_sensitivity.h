/* SPDX-License-Identifier: Apache-2.0 */
/* gaugeblock study sensitivity. */
#ifndef GB_HARNESS_PROGRAM_STUDY_SENSITIVITY_H
#define GB_HARNESS_PROGRAM_STUDY_SENSITIVITY_H

#include "fixtures/fixtures.h"

struct sensitivity_options {
    const char *fixture;
    const char *original;     /* folder of the checkpoint before quantisation */
    const char *input_scales; /* folder of a checkpoint with scales of activations; NULL: calibrated */
    const char *activations;  /* NULL: the fixture's, nvfp4 where these are bf16 */
    const char *remedy;       /* what is done to the experts that hurt: bf16, mxfp8 or dynamic; NULL: bf16 */
    const char *csv, *exclude;
};
/* Exit code; what went wrong is said. */
int study_sensitivity(const struct sensitivity_options *options);

#endif

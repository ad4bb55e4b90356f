/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/contract.h"

const struct gb_contract *fixture_contract(const struct gb_fixture *f)
{
    return gb_contract_find(f->weights, f->activations, GB_ORDER_FMA32);
}

const struct gb_contract *kernel_contract(const struct gb_fixture *f, const struct gb_kernel *kernel)
{
    return gb_contract_find(f->weights, kernel->activations, kernel->order ? kernel->order : GB_ORDER_FMA32);
}

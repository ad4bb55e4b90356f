# SPDX-License-Identifier: Apache-2.0
"""What a kernel of a layer does wrong in tests of gaugeblock.testing, and words of its diagnosis, or others behind a |."""

MISTAKES = {
    "nibbles": "nibbles of gate and up exchanged",
    "gate and up": "gate and up swapped",
    "silu": "sigmoid of 1.702 gate",
    "relu": "ReLU in place of SiLU",
    "column": "intermediate: those of the previous column",
    "output": "output: multiplied by 1.01",
    "slot": "zero|left out",
    "weights": "routing weight of the next slot",
    "tokens": "input x: those of the previous token",
    "experts": "experts' ids off by 1",
    "block scales": "scales of the next block in down",
    "global scales": "global scale of gate used for up",
    "bf16 weights": "routing weight in bf16",
}

# Those that are named in a layer of Qwen3-Next's sizes, too; there only some neighbouring tokens are looked at, and the
# first of them has its row from outside.
NAMED_IN_LARGE = [name for name in MISTAKES if name != "tokens"]


def is_named(mistake, text):
    return any(words in text for words in MISTAKES[mistake].split("|"))

# SPDX-License-Identifier: Apache-2.0
"""Fixtures from Python: what `gaugeblock make` writes."""

import os
import typing

from gaugeblock import native


def make(
    path: typing.Union[str, "os.PathLike[str]"],
    *,
    model: typing.Optional[str] = None,
    shape: typing.Optional[typing.Sequence[int]] = None,
    tokens: typing.Optional[int] = None,
    layers: typing.Optional[int] = None,
    format: typing.Optional[str] = None,
    activations: typing.Optional[str] = None,
    activation_recipe: typing.Optional[str] = None,
    data: typing.Optional[str] = None,
    routing: typing.Optional[str] = None,
    router: typing.Optional[str] = None,
    seed: typing.Optional[int] = None,
    generated: bool = False,
    operator: typing.Optional[str] = None,
    recipe: typing.Optional[str] = None,
    input: typing.Optional[str] = None,
    silu: typing.Optional[str] = None,
    activated: typing.Optional[str] = None,
    product: typing.Optional[str] = None,
    layout: typing.Optional[str] = None,
    bound: typing.Optional[float] = None,
    global_scale: typing.Optional[float] = None,
    ranks: typing.Optional[int] = None,
    placement: typing.Optional[str] = None,
    empty_ranks: typing.Optional[int] = None,
    accumulation: typing.Optional[str] = None,
    ranks_per_node: typing.Optional[int] = None,
) -> str:
    """Writes a generated problem to the file at `path` and returns the path, which `verify` takes.

    Give a model (a name of `gaugeblock list models`), or a shape: (experts, top_k, hidden, intermediate). The rest are
    the options of `gaugeblock make` by their names; what is None is the program's default: 8 tokens, 1 layer, format
    "nvfp4", activations "bf16", data "gaussian", routing "router", seed 1. generated: the file keeps only the seed, and
    the weights of the experts in use are made on reading. Or give an operator, "quantise" or "silu_mul_quantise", and a
    recipe (`gaugeblock list recipes`): a problem of a quantiser, of shape (rows, columns); the options from `input` to
    `global_scale` go with it. Or "dispatch" or "combine", of shape (experts, top_k, hidden) or a model, with `tokens` on
    each of `ranks`; the options from `ranks` on go with it.

    ValueError says what the program refused: an argument, or a path that cannot be written. FileNotFoundError: no gaugeblock.
    """
    if isinstance(shape, str):
        raise ValueError(f"shape={shape!r}: give numbers, such as (8, 2, 128, 64)")
    options = {
        "model": model,
        "shape": None if shape is None else ",".join(map(str, shape)),
        "tokens": tokens,
        "layers": layers,
        "format": format,
        "activations": activations,
        "activation-recipe": activation_recipe,
        "data": data,
        "routing": routing,
        "router": router,
        "seed": seed,
        "operator": operator,
        "recipe": recipe,
        "input": input,
        "silu": silu,
        "activated": activated,
        "product": product,
        "layout": layout,
        "bound": bound,
        "global-scale": global_scale,
        "ranks": ranks,
        "placement": placement,
        "empty-ranks": empty_ranks,
        "accumulation": accumulation,
        "ranks-per-node": ranks_per_node,
    }
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    words += ["--generated"] if generated else []
    done = native.run("make", *words, "--", path)
    if done.returncode:
        raise ValueError(done.stderr.strip() or f"gaugeblock make ended with {done.returncode}")
    return os.fspath(path)

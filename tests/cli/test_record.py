# SPDX-License-Identifier: Apache-2.0
"""Every figure of a record by numpy, from the outputs that were judged, the reference's and the fixture's truths."""
import hashlib
import math
import re

import h5py
import numpy as np

from nvfp4 import to_bf16
from kept import expect_kept
from program import expect, path, record, run
from reference import Reference

P = 1e-9  # of a false alarm in one case


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def near(found, expected, what, tolerance=1e-9):
    if expected is None or not math.isfinite(expected):
        expect(found is None, f"{what} is {found}, by numpy {expected}")
    else:
        expect(found is not None and abs(found - expected) <= tolerance * max(abs(expected), 1e-12),
               f"{what} is {found}, by numpy {expected}")


def check_metrics(found, value, truth, what):
    """value, truth: [tokens, hidden], of one layer or of several under each other. NaN in both is left out."""
    both = np.isnan(value) & np.isnan(truth)
    v, t = np.where(both, 0, value), np.where(both, 0, truth)
    with np.errstate(all="ignore"):
        cosines = (v * t).sum(-1) / np.sqrt((v * v).sum(-1) * (t * t).sum(-1))
        error, energy = ((v - t) ** 2).sum(), (t * t).sum()
        figures = {"cosine_min": np.nan if np.isnan(cosines).any() else cosines.min(),
                   "cosine": (v * t).sum() / np.sqrt((v * v).sum() * energy), "max_abs": abs(v - t).max(),
                   "relative_l2": np.sqrt(error / energy), "sqnr_db": 10 * np.log10(energy / error)}
    expect(found.keys() == figures.keys() | {"elements", "non_finite", "cosine_min_token"}, f"{what}: {list(found)}")
    expect(found["elements"] == value.size, f"{what}: {found['elements']} elements of {value.size}")
    wrong = int((~np.isfinite(value) & np.isfinite(truth)).sum())
    expect(found["non_finite"] == wrong, f"{what}: {found['non_finite']} not finite, by numpy {wrong}")
    for name, expected in figures.items():
        near(found[name], float(expected), f"{what}.{name}")
    return cosines


def order(values):
    """Encodings on a line, -0 just below +0."""
    bits = values.view({4: np.uint32, 2: np.uint16}[values.itemsize]).astype(np.int64)
    sign = 1 << (8 * values.itemsize - 1)
    return np.where(bits & sign, -(bits & (sign - 1)) - 1, bits)


def check_bits(found, subject, reference, what):
    """subject, reference: FP32, or bf16 bits. Returns how many differ and the largest distance."""
    a, b = order(subject), order(reference)
    infinity = 0x7F800000 if subject.itemsize == 4 else 0x7F80
    nan_a, nan_b = (np.abs(np.where(v < 0, v + 1, v)) > infinity for v in (a, b))
    differ = (a != b) & ~(nan_a & nan_b)
    mixed = differ & (nan_a | nan_b)
    ulp = int(np.abs(a - b)[differ & ~mixed].max(initial=0))
    expected = {"compared": a.size, "mismatching": int(differ.sum()), "nan_mismatching": int(mixed.sum()),
                "max_ulp": ulp}
    if differ.any():
        i = int(np.flatnonzero(differ.ravel())[0])
        width = a.size // len(subject)
        bits = [f"0x{int(v.ravel().view(f'u{v.itemsize}')[i]):0{2 * v.itemsize}x}" for v in (subject, reference)]
        expected["first"] = {"token": i // width, "element": i % width, "subject": bits[0], "reference": bits[1]}
    expect(found == expected, f"{what}: {found}, by numpy {expected}")
    return expected["mismatching"], ulp


def check_bound(found, error, worst, sigma, elements, what):
    """error: |subject - truth|, per token in rows. elements: of the case."""
    limit = np.minimum(worst, math.sqrt(2 * math.log(2 * elements / P)) * sigma)
    with np.errstate(all="ignore"):
        ratio = np.where(error == 0, 0, error / limit)
        expected = {"worst_case_ratio": np.where(error == 0, 0, error / worst).max(), "limit_ratio": ratio.max(),
                    "rms_ratio": np.sqrt((error ** 2).sum(-1) / (sigma ** 2).sum(-1)).max()}
    count = int((error > limit).sum())
    expect((found["elements"], found["exceeding"]) == (error.size, count), f"{what}: {found}, by numpy {count}")
    for name, value in expected.items():
        near(found[name], float(value), f"{what}.{name}")
    if "at_token" in found:
        at = int(ratio.argmax())
        expect((found["at_token"], found["at_element"]) == (at // error.shape[1], at % error.shape[1]),
               f"{what}: {found}, by numpy at {at // error.shape[1]}, {at % error.shape[1]}")
    return count, expected


def boundaries(bits):
    """Half way to the next bf16 code on either side of a code: (above, below)."""
    value, up, down = widen(bits), widen((bits + 1).astype(np.uint16)), widen((bits - 1).astype(np.uint16))
    zero = bits & 0x7FFF == 0
    inner = np.where(zero, 0, (value + down) / 2)
    tiny = 2.0 ** -134
    outer = (value + up) / 2
    negative = bits >> 15 == 1
    high = np.where(zero, tiny, np.where(negative, inner, outer))
    return high, np.where(zero, -tiny, np.where(negative, outer, inner))


def check_codes(found, layers, subject, reference):
    """Admissible codes and the number of differences, by docs/numerics.md#stages. layers: bounds of each."""
    count = dict.fromkeys(("codes", "same", "admissible_differences", "inadmissible", "counted_differences",
                           "allowed_differences"), 0)
    mean, total = 0.0, sum(s.size for s in subject)
    for bounds, s, r in zip(layers, subject, reference):
        h, worst, bias = bounds["intermediate_truth"], bounds["unrounded_worst"], abs(bounds["intermediate_bias"])
        c = np.minimum(worst, math.sqrt(2 * math.log(2 * total / P)) * bounds["unrounded_sigma"] + bias)
        low, high = np.float32(h - c), np.float32(h + c)
        low = np.where(low > h - c, np.nextafter(low, np.float32(-np.inf)), low)
        high = np.where(high < h + c, np.nextafter(high, np.float32(np.inf)), high)
        same = widen(s) == widen(r)
        legal = ~same & (widen(to_bf16(low)) <= widen(s)) & (widen(s) <= widen(to_bf16(high)))
        above, below = boundaries(r)
        variance = bounds["unrounded_typical"] ** 2

        def reach(distance, b):
            with np.errstate(all="ignore"):
                cantelli = np.where(distance <= b, 1, variance / (variance + (distance - b) ** 2))
            return np.where(distance > worst, 0, cantelli)

        f = np.maximum(reach(above - h, bias) + reach(h - below, -bias),
                       reach(above - h, -bias) + reach(h - below, bias))
        f = np.where((above < h) | (below > h), 1, np.minimum(f, 1))
        layer_mean, differences, most = float(f.sum()), int(legal.sum()), 0
        for k in range(s.size + 1):
            chance = math.exp(-(k * math.log(k / layer_mean) - k + layer_mean)) if k > layer_mean else 1
            most = k if chance > P / len(layers) else most
        mean += layer_mean
        for name, number in (("codes", s.size), ("same", int(same.sum())), ("admissible_differences", differences),
                             ("inadmissible", int((~same & ~legal).sum())), ("counted_differences", differences),
                             ("allowed_differences", most)):
            count[name] += number
    for name, number in count.items():
        expect(found[name] == number, f"codes.{name} is {found[name]}, by numpy {number}")
    near(found["expected_differences"], mean, "codes.expected_differences", 1e-6)
    return count


class Case:
    """A fixture of three layers with a stack, and a subject whose errors are the reference's and some of its own."""

    def __init__(self, name, seed):
        self.path, random = path(name), np.random.default_rng(seed)
        run("make", self.path, "--shape", "8,3,96,48", "--tokens", "9", "--layers", "3", "--seed", seed)
        with h5py.File(self.path, "r+", libver="latest") as f:
            self.truth = {k: [f[f"layers/{l}/truth/{k}"][()] for l in range(3)] for k in ("quantised", "original")}
            self.stack = {k: f[f"stack/truth/{k}"][()] for k in ("quantised", "original")}
            self.x = [widen(f[f"layers/{l}/x"][()]) for l in range(3)]
            self.norm = [f[f"layers/{l}/norm/weight"][()] for l in range(3)]
            self.residual, self.epsilon = f["stack/residual"][()], f.attrs["rms_norm_epsilon"]
            self.router = [widen(f[f"layers/{l}/router/weight"][()]) for l in range(3)]
        self.reference = r = Reference(self.path)
        self.right, self.right_h = zip(*(r.layer(l) for l in range(3)))
        self.output = [np.float32(o * (1 + 3e-4 * random.standard_normal(o.shape))) for o in self.right]
        self.h = [h.copy() for h in self.right_h]
        for h in self.h:  # neighbouring codes, some admissible and some not
            flat = h.reshape(-1)
            at = random.choice(flat.size, 12, replace=False)
            flat[at] = np.where(flat[at] & 0x7FFF, flat[at] + random.integers(-1, 2, 12), flat[at])
        self.streams = {"reference": self.right_stack()}
        self.streams["subject"] = self.streams["reference"] + 0.2 * random.standard_normal((3, 9, 96))

    def input(self, state, layer):
        """What a layer gets of the stream before it, not rounded."""
        return state / np.sqrt((state * state).mean(-1, keepdims=True) + self.epsilon) * self.norm[layer]

    def right_stack(self):
        state, states = self.residual.copy(), []
        for l in range(3):
            x = to_bf16(np.float32(self.input(state, l)))
            state = state + self.reference.layer(l, x, *self.reference.route(l, x))[0]
            states.append(state)
        return np.stack(states)

    def changed_sets(self, stream, layer):
        """Tokens that a stream routes to another set of experts than truth's stream, which nothing rounds."""
        tokens = stream.shape[1]
        before, truth = (of[layer - 1] if layer else self.residual for of in (stream, self.stack["quantised"]))
        ids, _ = self.reference.route(layer, to_bf16(np.float32(self.input(before[:tokens], layer))))
        best = np.argsort(-(self.input(truth[:tokens], layer) @ self.router[layer].T), -1)[:, :3]
        return sum(set(a) != set(b) for a, b in zip(ids, best))

    def write(self, name, tokens=9):
        with h5py.File(path(name), "w") as f:
            for l in range(3):
                f[f"layers/{l}/output"], f[f"layers/{l}/intermediate"] = self.output[l][:tokens], self.h[l][:tokens]
            f["stack/output"] = self.streams["subject"][:, :tokens]
        return path(name)


def check_case(case, one, tokens=9):
    checks, layers = one["checks"], one["metrics"]["layers"]
    elements = 3 * tokens * (96 + 3 * 48)
    bounds = [{k: v[:tokens] for k, v in case.reference.bounds(l, case.x[l]).items()} for l in range(3)]
    totals, bits, exceeding, worst = np.zeros(2, int), 0, 0, []
    for l, found in enumerate(layers):
        expect((found["layer"], found["model_layer"]) == (l, l), str(found["layer"]))
        b, y, h = bounds[l], case.output[l][:tokens], case.h[l][:tokens]
        for name, subject, right in (("output", y, case.right[l]), ("intermediate", h, case.right_h[l])):
            n, ulp = check_bits(found["subject_reference"][name], subject, right[:tokens], f"layer {l}, {name}")
            totals += subject.size, n
            bits = max(bits, ulp)
            digest = hashlib.sha256(subject.tobytes()).hexdigest()
            expect(found[f"{name}_sha256"] == digest, f"layer {l}: {name}_sha256")
        truth = case.truth["quantised"][l][:tokens]
        for name, value, right in (("output", y.astype(float), truth),
                                   ("intermediate", widen(h), b["intermediate_truth"])):
            error = abs(value - right).reshape(tokens, -1)
            n, ratios = check_bound(found["bound"][name], error, b[f"{name}_worst"].reshape(tokens, -1),
                                    b[f"{name}_sigma"].reshape(tokens, -1), elements, f"layer {l}: bound.{name}")
            exceeding += n
            worst.append(ratios)
    expect((checks["bits"]["compared"], checks["bits"]["mismatching"], checks["bits"]["max_ulp"]) == (*totals, bits),
           f"bits: {checks['bits']}, by numpy {totals}, {bits}")
    expect((checks["bound"]["elements"], checks["bound"]["exceeding"]) == (elements, exceeding), str(checks["bound"]))
    for name in worst[0]:
        near(checks["bound"][name], float(max(w[name] for w in worst)), f"bound.{name}")
    check_codes(checks["codes"], bounds, [h[:tokens] for h in case.h], [h[:tokens] for h in case.right_h])

    right = [o[:tokens].astype(float) for o in case.right]
    mine = [o[:tokens].astype(float) for o in case.output]
    stored = [widen(to_bf16(o[:tokens])) for o in case.output]
    figures = [("reference_truth", "quantised", right, "quantised"), ("reference_truth", "original", right, "original"),
               ("subject_truth", "quantised", mine, "quantised"), ("subject_truth", "original", mine, "original"),
               ("subject_truth", "quantised_bf16_store", stored, "quantised")]
    for of, name, values, truth in figures:
        truths = [t[:tokens] for t in case.truth[truth]]
        lowest = []
        for l, found in enumerate(layers):
            cosines = check_metrics(found[of][name], values[l], truths[l], f"layer {l}: {of}.{name}")
            expect(found[of][name]["cosine_min_token"] == int(cosines.argmin()), f"layer {l}: {of}.{name} at")
            lowest.append((cosines.min(), int(cosines.argmin())))
        overall = one["metrics"]["overall"][of][name]
        check_metrics(overall, np.concatenate(values), np.concatenate(truths), f"overall: {of}.{name}")
        expect(overall["cosine_min_token"] == min(lowest)[1], f"overall: {of}.{name} at")

    for l, found in enumerate(one["metrics"]["drift"]):
        expect((found["layer"], found["model_layer"]) == (l, l), str(found["layer"]))
        for who in ("subject", "reference"):
            stream = case.streams[who][:, :tokens]
            for truth in ("quantised", "original"):
                check_metrics(found[f"{who}_truth"][truth], stream[l], case.stack[truth][l, :tokens],
                              f"drift {l}: {who}.{truth}")
            sets, changed = found[f"{who}_changed_expert_sets"], case.changed_sets(stream, l)
            expect(sets == changed, f"drift {l}: {who} changed {sets}, by numpy {changed}")
    return [d["subject_changed_expert_sets"] for d in one["metrics"]["drift"]]


case = Case("record.h5", seed=5)
whole = record(case.path, "--outputs", case.write("outputs.h5"), code=1)
with open("/proc/cpuinfo") as stream:
    names = re.findall(r"(?m)^model name\s*: (.*)$", stream.read())
expect(whole["environment"]["cpu"] == (names or ["unknown"])[0], f"the CPU is {whole['environment']['cpu']!r}")
one, = whole["cases"]
expect(one["verdict"] == "FAIL" and one["checks"]["codes"]["inadmissible"] > 0, one["reason"])
changed = check_case(case, one)
expect(changed[0] == 0 and 0 < sum(changed) < 18, f"{changed}: too many or no tokens have changed their experts")
one, = record(case.path, "--outputs", case.write("four.h5", 4), "--batch", "4", code=1)["cases"]
check_case(case, one, 4)

# What is not finite: in the outputs a figure that is none, in the stream a failure by itself.
good = Case("finite.h5", seed=6)
good.h, good.output = list(good.right_h), list(good.right)
record(good.path, "--outputs", good.write("good.h5"))
for bad in (np.nan, np.inf):
    stream = good.streams["subject"].copy()
    good.streams["subject"][1, 7, 31] = bad
    one, = record(good.path, "--outputs", good.write("stream.h5"), code=1)["cases"]
    expect("residual stream after layer 1: token 7, element 31 is" in one["reason"], one["reason"])
    drift = one["metrics"]["drift"]
    expect([d["subject_truth"]["quantised"]["non_finite"] for d in drift] == [0, 1, 0], str(drift))
    good.streams["subject"] = stream
    output = good.output[2]
    good.output[2] = output.copy()
    good.output[2][3, 5] = bad
    one, = record(good.path, "--outputs", good.write("output.h5"), code=1)["cases"]
    expect("output of layer 2: 1 of" in one["reason"], one["reason"])
    last = one["metrics"]["layers"][2]
    check_metrics(last["subject_truth"]["original"], good.output[2].astype(float), good.truth["original"][2],
                  "an output that is not finite")
    check_bits(last["subject_reference"]["output"], good.output[2], good.right[2], "not finite")
    good.output[2] = output

# With an order the stream's bits count, where the reference's outputs are the kernel's: not with bf16 ones.
order = "--order", "fma32/1"
good.streams["subject"] = good.streams["reference"].copy()
record(good.path, "--outputs", good.write("bits.h5"), *order)
good.streams["subject"][2, 8, 95] = np.nextafter(good.streams["subject"][2, 8, 95], np.inf)
one, = record(good.path, "--outputs", good.write("bit.h5"), *order, code=1)["cases"]
expect(one["reason"].startswith("residual stream after layer 2: token 8, element 95 is "), one["reason"])
good.output = [to_bf16(o) for o in good.right]
record(good.path, "--outputs", good.write("bf16.h5"), *order)

expect_kept()

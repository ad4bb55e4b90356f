# SPDX-License-Identifier: Apache-2.0
"""Stage by stage: codes of the intermediate, down on the subject's own codes, the FFN under the subject's own routing."""
import shutil
import sys

import h5py
import numpy as np

from blocks import block
from kept import expect_kept
from program import expect, path, record, run

script = block("kernels.md", "python")


def compute(fixture, file):
    """A correct layer's outputs, in float64, by the script of docs/kernels.md."""
    sys.argv[1:] = fixture, path(file)
    exec(script, {})
    return path(file)


def rerouted(fixture, name, change):
    """Outputs of a copy of the fixture whose routing `change(ids, weights)` has altered, with that routing."""
    shutil.copy(fixture, path("copy.h5"))
    with h5py.File(path("copy.h5"), "r+") as f:
        ids, weights = f["layers/0/routing/ids"][...], f["layers/0/routing/weights"][...]
        change(ids, weights)
        f["layers/0/routing/ids"][...], f["layers/0/routing/weights"][...] = ids, weights
    file = compute(path("copy.h5"), name)
    with h5py.File(file, "r+") as f:
        f["layers/0/routing/ids"], f["layers/0/routing/weights"] = ids, weights
    return file


fixture = path("routed.h5")
run("make", fixture, "--shape", "32,4,96,48", "--tokens", "16")
with h5py.File(fixture) as f:
    ids, weights = f["layers/0/routing/ids"][...], f["layers/0/routing/weights"][...]
    unused = np.setdiff1d(np.arange(32), ids[3])

# The fixture's own routing: nothing is judged anew.
route, layer = record(fixture, "--outputs", rerouted(fixture, "same.h5", lambda i, w: None))["cases"]
expect(route["subject"]["operator"] == "route" and layer["subject"]["operator"] == "layer", "two cases")
expect("rerouted_tokens" not in layer, "the same routing")


# Slots in another order are right for a router that claims none, and the layer is that of these slots.
def backwards(i, w):
    i[...], w[...] = i[:, ::-1].copy(), w[:, ::-1].copy()


route, layer = record(fixture, "--outputs", rerouted(fixture, "backwards.h5", backwards))["cases"]
expect(layer["rerouted_tokens"] == 16 and layer["metrics"]["overall"]["subject_truth"]["original"]["cosine"] is None, layer)
expect(layer["rerouted"] == {"expert_sets": 0, "weights_only": 0, "slot_order_only": 16, "max_ulp": 0}, layer["rerouted"])


# Every expert is right, and only the last bits of some weights are others: that is said, and by how much.
def last_bits(i, w):
    w.view(np.uint32)[4, 1] += 3
    w.view(np.uint32)[7, 0] -= 1
    backwards(i[7:8], w[7:8])


file = rerouted(fixture, "last-bits.h5", last_bits)
layer = record(fixture, "--outputs", file)["cases"][1]
expect(layer["rerouted"] == {"expert_sets": 0, "weights_only": 2, "slot_order_only": 0, "max_ulp": 3}, layer["rerouted"])
printed = run("verify", fixture, "--outputs", file).stdout
expect("same expert sets, routing weights differ by up to 3 ulp for 2 tokens; the FFN was" in printed, printed)
expect("expert sets differ" not in printed, printed)


# A wrong expert is the router's fault alone. Where the routing is not handed out, the layer gets it.
def wrong(i, w):
    i[3, 2] = unused[0]


file = rerouted(fixture, "wrong.h5", wrong)
route, layer = record(fixture, "--outputs", file, code=1)["cases"]
expect(route["verdict"] == "FAIL" and f"token 3 has expert {unused[0]}" in route["reason"], route["reason"])
expect(layer["verdict"] == "PASS" and layer["rerouted_tokens"] == 1, layer["reason"])
expect(layer["rerouted"] == {"expert_sets": 1, "weights_only": 0, "slot_order_only": 0, "max_ulp": 0}, layer["rerouted"])
printed = run("verify", fixture, "--outputs", file, code=1).stdout
expect("expert sets differ from the fixture's for 1 tokens; the FFN" in printed, printed)
with h5py.File(file, "r+") as f:
    del f["layers/0/routing"]
layer, = record(fixture, "--outputs", file, code=1)["cases"]
expect("token 3" in layer["reason"], layer["reason"])

# A wrong FFN under a wrong routing: each is told by itself.
with h5py.File(rerouted(fixture, "both.h5", wrong), "r+") as f:
    f["layers/0/output"][5] *= 1.25
route, layer = record(fixture, "--outputs", path("both.h5"), code=1)["cases"]
expect(route["verdict"] == layer["verdict"] == "FAIL" and "token 5" in layer["reason"], layer["reason"])
expect(layer["explanation"]["name"] == "output of token 5: multiplied by 1.25", layer["explanation"])


# Ids that are no experts, weights that are no numbers: no output is right for them.
def beyond(i, w):
    i[3, 2], w[3, 2] = -1, 0


for spoilt, value in (("ids", 32), ("weights", np.nan)):
    with h5py.File(rerouted(fixture, "beyond.h5", beyond), "r+") as f:
        f[f"layers/0/routing/{spoilt}"][3, 2] = value
    route, layer = record(fixture, "--outputs", path("beyond.h5"), code=1)["cases"]
    expect(route["verdict"] == "FAIL" and layer["verdict"] == "NOT_RUN", [route["verdict"], layer["verdict"]])

# An expert that a generated fixture has no token for is generated.
run("make", path("generated.h5"), "--shape", "32,4,96,48", "--tokens", "2", "--generated")
run("make", path("stored.h5"), "--shape", "32,4,96,48", "--tokens", "2")
with h5py.File(path("stored.h5")) as f:
    idle = np.setdiff1d(np.arange(32), f["layers/0/routing/ids"][...])


def other(i, w):
    i[1, 0] = idle[-1]


file = rerouted(path("stored.h5"), "idle.h5", other)
for made in ("stored.h5", "generated.h5"):
    route, layer = record(path(made), "--outputs", file, code=1)["cases"]
    expect((route["verdict"], layer["verdict"]) == ("FAIL", "PASS"), f"{made}: {layer['reason']}")

# The intermediate's codes: one that rounding cannot give, and a fault of down that its rounding hides.
good = compute(fixture, "good.h5")
checks = record(fixture, "--outputs", good)["cases"][0]["checks"]
expect("codes" not in checks and "down" not in checks, "no intermediate, no stages")


for line, more in (("y = np.zeros(x.shape)", "\n        hs = np.zeros(ids.shape + (2 * layer['down/codes'].shape[2],), np.uint16)"),
                   ("* up)", "\n            hs[t, j] = h.astype(np.float32).view(np.uint32) >> 16"),
                   ('/output"] = y.astype(np.float32)', '\n        out[f"layers/{name}/intermediate"] = hs')):
    expect(script.count(line) == 1, f"docs/kernels.md without {line}")
    script = script.replace(line, line + more)
done = record(fixture, "--outputs", compute(fixture, "staged.h5"))["cases"][0]
codes, down = done["checks"]["codes"], done["checks"]["down"]
expect(codes["codes"] == 16 * 4 * 48 == codes["same"] + codes["admissible_differences"] and codes["inadmissible"] == 0, codes)
expect(codes["counted_differences"] <= codes["allowed_differences"] < codes["codes"] / 10, codes)


def floor(check, name):
    return [f["detection_limit_worst"] for f in check["families"] if f["name"] == name][0]


token = "scale of a token"
expect(floor(down["scale"], token) < floor(done["checks"]["scale"], token) / 5, "down's floor is far smaller")
shutil.copy(path("staged.h5"), path("inadmissible.h5"))
with h5py.File(path("inadmissible.h5"), "r+") as f:
    f["layers/0/intermediate"][7, 2, 31] ^= 1
reason = record(fixture, "--outputs", path("inadmissible.h5"), "--no-diagnosis", code=1)["cases"][0]["reason"]
expect("1 of 3072 bf16 values are inadmissible" in reason and "token 7, slot 2, column 31: 0x" in reason, reason)
shutil.copy(path("staged.h5"), path("scaled.h5"))
with h5py.File(path("scaled.h5"), "r+") as f:
    f["layers/0/output"][...] *= 1 + 2e-4
reason = record(fixture, "--outputs", path("scaled.h5"), "--no-diagnosis", code=1)["cases"][0]["reason"]
expect(reason.startswith("down of layer 0") or reason.startswith("down on the intermediate"), reason)
with h5py.File(path("scaled.h5"), "r+") as f:
    del f["layers/0/intermediate"]
record(fixture, "--outputs", path("scaled.h5"))

expect_kept()

# SPDX-License-Identifier: Apache-2.0
"""The example subjects of docs/kernels.md, with bugs in them: each is seen (tests/cli/test_docs.py runs them as printed)."""
import os
import subprocess

from blocks import block
from program import SOURCE, expect, path, record, small

fixture = small()
text = block("kernels.md", "c")


def build(source, name):
    with open(path(name + ".c"), "w") as stream:
        stream.write(source)
    subprocess.run([os.environ["CC"], "-shared", "-fPIC", "-O2", "-I", SOURCE, "-o", path(name + ".so"),
                    path(name + ".c"), "-lm"], check=True)
    return path(name + ".so")


one = record(fixture, "--subject", build(text, "example"), "--batch", "1,4,9")
expect(len(one["cases"]) == 3 and one["cases"][0]["contract"] == "", "three cases without an order")

# With the router of the second block, which includes the first, the layer routes by itself.
router = block("kernels.md", "c", 1)
for fault, verdicts in (("", ["PASS", "PASS"]), ("weights[j] /= sum;", ["FAIL", "PASS"])):
    expect(fault in router, "the fault was not injected")
    spoiled = router.replace(fault, ";") if fault else router
    cases = record(fixture, "--subject", build(spoiled, "block"), code=1 if fault else 0)["cases"]
    expect([case["verdict"] for case in cases] == verdicts, cases)

wrong = text.replace("pair >> 4 : pair & 15", "pair & 15 : pair >> 4")
expect(wrong != text, "the fault was not injected")
record(fixture, "--subject", build(wrong, "wrong"), code=1)

claims = text.replace(".order = NULL", '.order = "fma32/1"')
expect(claims != text, "the order was not claimed")
one = record(fixture, "--subject", build(claims, "claims"), code=1)
expect("differ from the reference" in one["cases"][0]["reason"], one["cases"][0]["reason"])

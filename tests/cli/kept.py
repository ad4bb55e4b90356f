# SPDX-License-Identifier: Apache-2.0
"""Whole outputs beside those that tests/cli/kept holds, but for times, hashes of libraries and where they ran. What is
kept shows that something changed, never that it was right: other tests do. With KEEP=1 in the environment it is written
anew, to be read in `git diff`."""
import difflib
import hashlib
import json
import os
import re
import sys

import program
from program import ALL, SANITISED, SOURCE, expect, folder

LIBRARIES = {name: os.environ[name.upper()] for name in ("calls", "faults", "hostile", "mistakes", "one_rank", "quantisers", "ranks")}
PLACES = {os.path.realpath(library): f"{name}.so" for name, library in LIBRARIES.items()}
PLACES[os.environ["BUILD"] + "/"] = "build/"  # wherever it lies
for place in (folder.name, os.path.realpath(folder.name), SOURCE):
    PLACES |= {place + "/": "", place: "."}


DIGEST = 4 # digits of numbers of which a hash is kept


def shortened(value, name="", digits=6):
    """A record without what a run alone says of itself; numbers with so many digits."""
    if name in ("environment", "library_sha256", "seconds", "timing"):
        return "..."
    if isinstance(value, dict): # which of tokens that are all alike is the farthest is rounding noise
        return {key: shortened(of, key, digits) for key, of in value.items()
                if key != "cosine_min_token" or
                (digits > DIGEST and not abs((value["cosine"] or 0.0) - (value["cosine_min"] or 1.0)) < 1e-9)}
    if isinstance(value, list):
        return [shortened(of, "", digits) for of in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def readable(file):
    """What a file holds, as text without what a run alone says of itself."""
    with open(file, encoding="utf-8") as stream:
        text = stream.read()
    if file == "explained.json": # of each case what its error looks like, in a line
        return "\n".join(json.dumps(shortened([case["subject"]["name"], case.get("explanation"), case["verdict"]]))
                         for case in json.loads(text)["cases"])
    if file.endswith(".json"):
        return json.dumps(shortened(json.loads(text)), indent=0)
    text = re.sub(r'(name="(?!verdict)\w+" value)="[^"]*"', r'\1="..."', text)
    text = re.sub(r'(<td class="text">(?:[\w.]*\.)?(?:environment\.\w+|seconds|library_sha256)</td>)<td[^<]*', r"\1<td>...", text)
    return re.sub(r'(hostname|timestamp|time)="[^"]*"', r'\1="..."', text)


def steady(text):
    """Text without what differs from run to run and from place to place."""
    # Rounding noise is not the same by every libm, nor are the last digits of a double; a page is drawn when it is drawn.
    text = re.sub(r"-?\b\d+\.\d{12,}(e[-+]\d+)?\b", lambda number: f"{float(number[0]):.6g}", text)
    text = re.sub(r"-?\b\d(\.\d+)?e-(1[3-9]|[2-9]\d|\d{3})\b", "0", text)
    for place, name in PLACES.items(): # a checkout in /src is no part of ggml/src
        text = re.sub(r"(?<![\w.])" + re.escape(place), lambda _, name=name: name, text)
    text = re.sub(r"\bgaugeblock \d+\.\d+\.\d+", "gaugeblock ...", text)
    text = re.sub(r"(truth hashes to )[0-9a-f]{64}", r"\1...", text)  # its last bits are the BLAS's
    text = re.sub(r"its last line: .*malloc.*", "its last line: ...", text)  # of an allocator that ends a process
    text = re.sub(r"^cuda[/:].*\n", "", text, flags=re.M)  # which of them there are is the build's and the machine's matter
    text = re.sub(r"(html: \d+ results, )\d+", r"\1...", text)
    return re.sub(r"\b20\d\d-\d\d-\d\d[T ][\d:]+(Z| UTC)?", "...", text)


def same(name, text):
    """Expects tests/cli/kept/name.txt to be the text."""
    file = os.path.join(SOURCE, "tests/cli/kept", name + ".txt")
    if os.environ.get("KEEP") == "1":
        with open(file, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(text)
    with open(file, encoding="utf-8", errors="surrogateescape") as stream:
        right = stream.read()
    if text == right: # the comparison line by line takes long
        return
    difference = list(difflib.unified_diff(right.split("\n"), text.split("\n"), "kept", "now", n=1, lineterm=""))
    expect(False, "\n".join(difference[:60]) + f"\n{len(difference)} lines; if they are right: KEEP=1 ctest -R {name}, and "
           "read git diff")


def digest(record):
    """A line for a record: the start of a hash of each part that is not printed, so that it tells which one changed."""
    parts = {}
    for case in record["cases"]:
        for name, part in case.items():
            if name not in ("batch", "contract", "exit_code", "reason", "repro", "seconds", "verdict"):
                parts[name] = parts.get(name, "") + json.dumps(shortened(part, name, DIGEST))
    texts = steady("\n".join(parts.values())).split("\n")
    return f"record of {len(record['cases'])} cases: " + ", ".join(
        f"{name} {hashlib.sha256(text.encode()).hexdigest()[:6]}" for name, text in zip(parts, texts)) + "\n"


def expect_kept():
    """Expects all that the test's commands said to be what is kept of it. The whole table of a test has more of them."""
    if not ALL and not SANITISED:
        same(os.path.basename(sys.modules["__main__"].__file__)[:-3].replace("test_", "cli_"), steady("\n".join(digest(one) if isinstance(one, dict) else one for one in program.said)))

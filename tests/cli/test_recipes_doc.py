# SPDX-License-Identifier: Apache-2.0
"""docs/ holds what the program prints of its recipes, and the published disagreements are in it."""
import os

from program import ALL, SOURCE, expect, run


def document(name):
    with open(os.path.join(SOURCE, "docs", name)) as stream:
        return stream.read()


def cell(lines, row, column):
    """Of two recipes' rows in one table, the cell above the diagonal."""
    rows = {line.split("`")[1]: [text.strip() for text in line.split("|")] for line in lines if "| `" in line}
    return int(rows[row][2 + int(rows[column][1])])


def section(text, title):
    return text.split(f"### {title}\n", 1)[1].split("\n### ", 1)[0].splitlines()


rows, differences = run("list", "recipes").stdout, document("recipe-differences.md")
expect(rows == document("recipe-rows.txt"), "docs/recipe-rows.txt: not what `gaugeblock list recipes` prints")
expect(not ALL or differences == run("list", "differences").stdout,
       "docs/recipe-differences.md: not what `gaugeblock list differences` prints")

# Counts that others published.
published = [
    ("MXFP4", "mxfp4.floor/1", "mxfp4.rceil/1", 15939),
    ("MXFP4", "mxfp4.floor/1", "mxfp4.even/1", 8096),
    ("MXFP4", "mxfp4.rceil/1", "mxfp4.even/1", 7843),
    ("MXFP4", "mxfp4.floor/1", "mxfp4.vllm/1", 8096),
    ("MXFP4", "mxfp4.rceil/1", "mxfp4.vllm/1", 7843),
    ("MXFP4", "mxfp4.rceil/1", "mxfp4.compressed-tensors/1", 7843),
    ("MXFP8", "mxfp8.rceil/1", "mxfp8.floor/1", 7657),
]
for title, one, other, count in published:
    found = cell(section(differences, title), one, other)
    expect(found == count, f"{one} against {other}: {found}, published {count}")
fp8 = section(differences, "FP8 with FP32 scales")
for words, count in (("RN(1/448)", 17468), ("1 / (a / 448)", 9963)):
    found = [int(line.split("|")[2]) for line in fp8 if words in line]
    expect(found == [count], f"{words}: {found}, published {count}")

# SPDX-License-Identifier: Apache-2.0
"""Measured numbers in README.md and docs/ have their record: a link to results/ or a command in the same section, or a
comment `<!-- measured: COMMAND -->`. `<!-- not measured: WHY -->` is for what only looks like one."""
import glob
import os
import re
import sys

from program import SOURCE, expect

UNIT = r"(?:[unµm]s|s|seconds?|minutes?|hours?|[KMGT]i?B/s|[GT]FLOP/s|[MG]Hz|[KMG]?weights/s|registers|tokens/s)"
NUMBER = re.compile(rf"(?<![\w.^*/+-])\d(?:[\d,.]*\d)?(?: to \d(?:[\d,.]*\d)?)? ?{UNIT}\b(?! *[(*/+|=-])"
                    r"|\b\d[\d,.]* times (?:as )?(?:fast|slow)")
HEADER = re.compile(r"(?m)^\|.*\b(registers|instructions|time|speed-?up|GB/s|us)\b.*\|\n\|[-|: ]+\|$")
RECORD = re.compile(r"\]\((?:docs/)?results/|\]\(#|<!-- (?:not )?measured: |^(?:    |```)", re.M)


def sections(text):
    """(first line, text) from heading to heading, without blocks of code and comments where numbers are looked for."""
    line = 1
    for part in re.split(r"(?m)^(?=#{1,4} )", text):
        yield line, part
        line += part.count("\n")


def bare(text):
    text = re.sub(r"(?ms)^```.*?^```", lambda m: "\n" * m.group().count("\n"), text)
    text = re.sub(r"(?s)<!--.*?-->", lambda m: "\n" * m.group().count("\n"), text)
    return re.sub(r"(?m)^    .*$|`[^`\n]*`", "", text)


def without_record(text):
    """[(line, number)] of one page."""
    found = []
    for first, section in sections(text):
        if RECORD.search(section):
            continue
        plain = bare(section)
        found += [(first + plain[:m.start()].count("\n"), m.group(1)) for m in HEADER.finditer(plain)]
        found += [(first + plain[:m.start()].count("\n"), m.group()) for m in NUMBER.finditer(plain)]
    return found


# What it must see, and what not.
for text, count in (("# A\nIt takes 12 ms.\n", 1), ("# A\nIt takes 12 ms ([record](results/README.md#a)).\n", 0),
                    ("# A\nAt 4.3 TB/s it is 1.2 times as fast.\n", 2), ("# A\n12 ms\n# B\n[r](results/a.json)\n", 1),
                    ("# A\n<!-- measured: gaugeblock bench -->\n12 ms\n", 0), ("# A\n<!-- it takes 10 minutes -->\n", 0),
                    ("# A\nx = 2 s + 1 and 7. s = 0, `4 s` (w / s) * 2.5, s\n", 0), ("# A\n3 to 5 minutes\n", 1),
                    ("# A\n| kernel | registers |\n|---|---|\n| a | 95 |\n", 1)):
    expect(len(without_record(text)) == count, f"{text!r}: {without_record(text)}")

found = []
for file in [os.path.join(SOURCE, "README.md"), *sorted(glob.glob(os.path.join(SOURCE, "docs/*.md")))]:
    with open(file, encoding="utf-8") as stream:
        found += [f"{os.path.relpath(file, SOURCE)}:{line}: {number}: has no record and no command in its section"
                  for line, number in without_record(stream.read())]
if found:
    sys.exit("\n".join(found))

# SPDX-License-Identifier: Apache-2.0
"""Measured numbers in README.md, CHANGELOG.md, CONTRIBUTING.md and docs/ have their record beside them, in their own
paragraph or the one before or after: a link to results/, a command, or a comment `<!-- measured: COMMAND -->`.
`<!-- not measured: WHY -->` is for what only looks like one. Every record says when, by which command, on what and of
which commit in history it was made. Times of fma32's rivals in numerics.md are those of the table in docs/results."""
import glob
import os
import re
import subprocess
import sys

from program import SOURCE, expect

UNIT = r"(?:[unµm]s|s|seconds?|minutes?|hours?|[KMGT]i?B/s|[MGT]B|[GT]FLOP/s|[MG]Hz|[KMG]?weights/s|registers|tokens/s)"
NUMBER = re.compile(rf"(?<![\w.^*/+-])\d(?:[\d,.]*\d)?(?: to \d(?:[\d,.]*\d)?)? ?{UNIT}\b(?! *[(*/+|=-])"
                    r"|\b\d[\d,.]* times (?:as )?(?:fast|slow)"
                    r"|\b(?:half an?|one|two|three|four|five|six|seven|eight|nine|ten|twenty|thirty) "
                    r"(?:seconds?|minutes?|hours?)\b(?! (?:run|file|one|time)\b)")
HEADER = re.compile(r"(?m)^\|.*\b(registers|instructions|(?<!at a )time|speed-?up|GB/s|us)\b.*\|\n\|[-|: ]+\|$")
RECORD = re.compile(r"\]\((?:docs/)?results/|<!-- (?:not )?measured: |^(?:    |```)", re.M)


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
    for line, section in sections(text):
        blocks = re.split(r"\n(?=\s*\n)", section)
        for n, block in enumerate(blocks):
            plain = bare(block)
            if not RECORD.search("\n".join(blocks[max(0, n - 1):n + 2])):
                found += [(line + plain[:m.start()].count("\n"), m.group())
                          for pattern in (HEADER, NUMBER) for m in pattern.finditer(plain)]
            line += block.count("\n") + 1
    return found


# What it must see, and what not.
for text, count in (("# A\nIt takes 12 ms.\n", 1), ("# A\nIt takes 12 ms ([record](results/README.md#a)).\n", 0),
                    ("# A\nAt 4.3 TB/s it is 1.2 times as fast.\n", 2), ("# A\n12 ms\n# B\n[r](results/a.json)\n", 1),
                    ("# A\n<!-- measured: gaugeblock bench -->\n12 ms\n", 0), ("# A\n<!-- it takes 10 minutes -->\n", 0),
                    ("# A\nx = 2 s + 1 and 7. s = 0, `4 s` (w / s) * 2.5, s\n", 0), ("# A\n3 to 5 minutes\n", 1),
                    ("# A\nHalf a page in half a minute, and 20 MB; a second run.\n", 2),
                    ("# A\n12 ms\n\nB\n\n[r](results/a.json)\n", 1), ("# A\n12 ms\n\n[r](results/a.json)\n", 0),
                    ("# A\n| kernel | registers |\n|---|---|\n| a | 95 |\n", 1)):
    expect(len(without_record(text)) == count, f"{text!r}: {without_record(text)}")

def in_history(commit):
    """Whether HEAD comes after it; None where there is no whole history."""
    def git(*arguments):
        return subprocess.run(["git", "-C", SOURCE, *arguments], capture_output=True, text=True)
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        return None
    return git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def lacking(name, text, pages):
    """What a record does not say. pages: those of docs/, of which one has a line about it."""
    row = " ".join(line for line in pages.split("\n") if f"{name})" in line)
    commits = set(re.findall(r"commit\W+([0-9a-f]{7,40})\b", text))
    what = {"a line in docs/": row, "a date": re.search(r"20\d\d-\d\d-\d\d", text),
            "a command": re.search(r'"command": ".|`[^`]+`', text + row), "a commit": commits,
            "commits in history alone": all(in_history(one) is not False for one in commits),
            "the device": "H200" in text if "h200" in name else re.search(r'"cpu"|no GPU|cores', text + row),
            "PyTorch's version": "torch" not in name or re.search(r'"torch": "\d', text)}
    return [need for need, there in what.items() if not there]


def page(name):
    with open(os.path.join(SOURCE, "docs", name), encoding="utf-8") as stream:
        return stream.read()


def rows(text, first):
    """The cells of the table whose head begins with `first`."""
    lines = text[text.index(f"\n| {first}") + 1:].split("\n\n")[0].split("\n")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("|--")]


def rivals():
    """Rows of numerics.md that are not the smallest and the largest quotient of the table of candidate orders."""
    results = page("results/README.md")
    (_, *gate_up), (_, *down) = (rows(results, f"{operator}: model") for operator in ("gate_up", "down"))

    def quotients(table, column, tokens):
        all_of = [float(row[column]) / float(row[2]) for row in table if int(row[1]) in tokens]
        return f"{min(all_of):.1f} to {max(all_of):.1f}"
    every = (1, 2, 8, 32)
    wanted = [quotients(gate_up, 5, every), quotients(gate_up, 4, every),
              quotients(down, 4, (1, 2)), quotients(down, 4, (8, 32))]
    told = [row[2] for row in rows(page("numerics.md"), "rival")[1:]]
    expect(len(told) == len(wanted), f"docs/numerics.md: {len(told)} rivals")
    return [f"docs/numerics.md: a rival takes {a}; docs/results/README.md has {b}"
            for a, b in zip(told, wanted) if a != b]


found = rivals()
texts = [os.path.join(SOURCE, name) for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
for file in texts + sorted(glob.glob(os.path.join(SOURCE, "docs/*.md"))):
    with open(file, encoding="utf-8") as stream:
        found += [f"{os.path.relpath(file, SOURCE)}:{line}: {number}: has no record and no command in its section"
                  for line, number in without_record(stream.read())]
pages = "".join(open(file, encoding="utf-8").read() for file in glob.glob(os.path.join(SOURCE, "docs/**/*.md"), recursive=True))
for file in sorted(glob.glob(os.path.join(SOURCE, "docs/results/*.json")) + glob.glob(os.path.join(SOURCE, "docs/results/*.txt"))):
    with open(file, encoding="utf-8") as stream:
        found += [f"{os.path.relpath(file, SOURCE)}: does not say {need}"
                  for need in lacking(os.path.basename(file), stream.read(), pages)]
if found:
    sys.exit("\n".join(found))

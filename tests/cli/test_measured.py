# SPDX-License-Identifier: Apache-2.0
"""Measured numbers in README.md, CHANGELOG.md, CONTRIBUTING.md and docs/ have their record beside them, in their own
paragraph or the one before or after: a link to results/, a command, or a comment `<!-- measured: COMMAND -->`.
`<!-- not measured: WHY -->` is for what only looks like one. Every record says when, by which command, on what and of
which commit in history it was made. Times of fma32's rivals in numerics.md are those of the table in docs/results,
and what docs/results/README.md says of a record is what the record says; figures.py has the other figures of pages that are
held against records. Records of a GPU are of one commit. Our commits that pages name are in history, paths of ours exist,
and shares in per cent are shares."""
import glob
import json
import os
import re
import subprocess
import sys

from figures import is_rounded, page, record, rows, wrong_figures, wrong_percentages
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
    if name.endswith(".md"):  # what a command wrote as it stands: the paragraphs about it say the rest
        text += "".join(part for part in pages.split("\n\n") if f"{name})" in part)
    commits = set(re.findall(r"commit\W+([0-9a-f]{7,40})\b", text))
    what = {"a line in docs/": row, "a date": re.search(r"20\d\d-\d\d-\d\d", text),
            "a command": re.search(r'"command": ".|`[^`]+`', text + row), "a commit": commits,
            "commits in history alone": all(in_history(one) is not False for one in commits),
            "the device": "H200" in text if "h200" in name else re.search(r'"cpu"|no GPU|cores', text + row),
            "PyTorch's version": "torch" not in name or re.search(r'"torch": "\d', text)}
    return [need for need, there in what.items() if not there]


def gone(texts):
    """Commits of ours that are not in history, and files of ours that are not there. texts: {name: text}."""
    found, known = [], {}
    for name, text in texts.items():
        commits = re.findall(r"\b(?:commits?|of)\s+[0-9a-f]{12}\b(?:\s+and\s+[0-9a-f]{12}\b)?|\bgit show [0-9a-f]{7,40}:|"
                             r"\| 20\d\d-\d\d-\d\d \| [0-9a-f]{7,40} \|", text)
        for commit in re.findall(r"(?<![\w-])[0-9a-f]{7,40}\b", " ".join(commits)):
            known[commit] = known[commit] if commit in known else in_history(commit)
            found += [f"{name}: commit {commit} is not in history"] if known[commit] is False else []
        paths = re.findall(r"`((?:tests|gpu|harness|quant|reference|fixtures|python|cmake)/[\w./-]*\w\.(?:cuh?|[ch]|py|sh|md|txt))`", text)
        found += [f"{name}: there is no {file}" for file in sorted(set(paths)) if not re.match(r"tests/(gemm|kernels|moe)/", file)
                  and not os.path.exists(os.path.join(SOURCE, file))]  # these three are folders of vLLM and FlashInfer
    return found


def of_another_commit():
    """Records and tables of a GPU that are not of the commit of most: they are made in one run."""
    of = {}
    for file in glob.glob(os.path.join(SOURCE, "docs/results/*h200*")):
        if not file.endswith(".svg"):
            with open(file, encoding="utf-8") as stream:
                of[os.path.basename(file)] = re.findall(r"commit\W+([0-9a-f]{12})\b", stream.read())
    of["verify.md"] = re.findall(r"\| 20\d\d-\d\d-\d\d \| ([0-9a-f]{12}) \|", page("results/verify.md"))
    for text in page("results/README.md").split("\n\n"):
        if "NVIDIA H200, 20" in " ".join(text.split()) or "NVIDIA H200, driver" in text:
            of[f"README.md, '{text[:20]}'"] = re.findall(r"commit\s+([0-9a-f]{12})\b", text)
    every = [commit for commits in of.values() for commit in set(commits)]
    most = max(every, key=every.count)
    return [f"docs/results/{name}: of {sorted(set(commits))}, and most are of {most}" for name, commits in of.items()
            if set(commits) != {most}]


def misbehaving():
    """Rows of verify.md on kernels that misbehave of which the record says something else."""
    kernels = {one["kernel"].split("/")[1]: one for one in record("h200-faults")["kernels"]}
    table = {cells[0].strip("`"): cells[1:] for cells in rows(page("results/verify.md"), "kernel | verdict | reason")[1:]}
    return [f"docs/results/verify.md: `{name}` is not what the record says" for name in sorted(kernels.keys() | table.keys())
            if name not in kernels or name not in table or table[name][0] != kernels[name]["verdict"]
            or not kernels[name]["reason"].startswith(table[name][1].removeprefix("-"))]


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


def span(values):
    return f"{min(values):.2f} to {max(values):.2f}"


def speeds(record, kernel, form="layer"):
    """How many times as fast as its peer a kernel of ours is, batch by batch."""
    return [b[kernel].get(form, b[kernel])["times_as_fast"] for b in record["batches"]]


def shares(record, kernel, batches):
    return [one["ceiling_share"] for one in record["timed"] if kernel in one["kernel"] and one["batch"] in batches]


# What the line of a record in docs/results/README.md says, as the record has it.
OUTCOMES = {
    "h200-verify": lambda r: [f"{r['passed']} of {r['cases']} cases pass",
                              f"{r['mismatching']} of {r['compared']:,} words"],
    "h200-stale": lambda r: [f"all {sum(k['verdict'] != 'PASS' for k in r['kernels'])} are caught"],
    "h200-mma": lambda r: [f"0 of {sum(k['outputs'] for k in r['kinds'] if not k['mismatches']):,} outputs differ"],
    "h200-route": lambda r: [f"{sum(k['pairs'] for k in r['routers']) + r['random_recipes']['pairs']:,} slots"],
    "h200-silu-mul-quantise": lambda r: [f"by {r['recipes']} recipes",
                                         f"{sum(o['codes'] for o in r['operators']):,} codes"],
    "h200-quantise-functions": lambda r: [f"{r['quotient']['differences']} of {r['quotient']['pairs']:,} quotients"],
    "h200-bench-models": lambda r: [f"MXFP8 {span(shares(r, 'mxfp8', (8, 32, 64)))}",
                                    f"NVFP4 {span(shares(r, 'nvfp4', (8, 32, 64)))}"],
    "h200-bench-qwen3-next": lambda r: [f"MXFP8 {shares(r, 'mxfp8-mma16-repacked-layer', [32])[0]:.2f}",
                                        f"NVFP4 {shares(r, 'nvfp4-mma16-repacked-layer', [32])[0]:.2f}",
                                        f"fma32 {shares(r, 'nvfp4-repacked-layer', [32])[0]:.2f}",
                                        f"naive kernel {span(shares(r, 'naive', [32]))}"],
    "h200-bench-triton": lambda r: [f"{name.upper()} {speeds(r, name)[0]:.2f} to {speeds(r, name)[-1]:.2f}"
                                    for name in ("mxfp8", "nvfp4")],
    "h200-bench-marlin": lambda r: ["{:.2f}, {:.2f} and {:.2f} times as fast".format(*speeds(r, "nvfp4"))],
    "h200-bench-monomoe": lambda r: [f"{max(of):.2f} to {min(of):.2f}" for name in ("mxfp8", "nvfp4")
                                     for of in (speeds(r, name), speeds(r, name, "routed-layer"))],
    "h200-bench-ranks": lambda r: [span([one["times_nccl"] for b in r["batches"] for one in b.values()
                                         if isinstance(one, dict)])],
    "false-alarms": lambda r: [f"{r['runs']:,} correct kernels", f"{r['alarms']} alarms"],
    "false-alarms-generated": lambda r: [f"{r['runs']:,} correct kernels", f"{r['alarms']} alarms", f"on {r['fixtures']:,} problems",
                                         f"{r['vacuous']} of them"],
    "false-alarms-truncated": lambda r: [f"{r['runs']:,} correct kernels", f"{r['alarms']} alarms"],
    "false-alarms-activations": lambda r: [f"{r['runs']:,} correct kernels", f"of {r['with_sums']:,}",
                                           f"{r['alarms']} alarms"],
    **dict.fromkeys(("mutation", "mutation-reference", "mutation-second", "mutation-fourth", "mutation-fifth", "mutation-sixth",
                     "mutation-seventh", "mutation-eighth", "mutation-ninth", "mutation-tenth"),
                    lambda r: ["{} of {} (".format(*r["killed_of"]["all"])]),
    "fuzz": lambda r: [f"{sum(t['executions'] for t in r['targets']):,} executions"],
    "exhaustive-silu": lambda r: [f"{r['differences']} differ; MPFR decided {r['decided_by_mpfr']:,}"],
}


def outcomes():
    """Lines of docs/results/README.md that do not say what their record does."""
    lines, wrong = page("results/README.md").split("\n"), []
    for file in glob.glob(os.path.join(SOURCE, "docs/results/*.json")):
        name = os.path.basename(file)
        says = OUTCOMES.get(name[len("2026-11-26-"):-len(".json")])
        (line,) = [line for line in lines if line.startswith("|") and f"]({name})" in line] if says else [""]
        with open(file, encoding="utf-8") as stream:
            wrong += [f"docs/results/README.md: the line of {name} does not say '{text}'"
                      for text in (says(json.load(stream)) if says else []) if text not in line]
    return wrong


for text, value, right in (("3,490", 3485.1, True), ("3,480", 3485.1, False), ("115", 115.4, True), ("1.06", 1.054, False),
                           ("5.2", 5.254, False), ("3,800", 3818.9, False), ("6.1e-03", 0.00606, True), ("0", 1, False),
                           ("6.1e-03", 0.00616, False), ("15", 15.17, True), ("0", 0, True), ("10", 13, False)):
    expect(is_rounded(text, value) == right, f"{text} of {value}")
expect(len(wrong_percentages({"a": "9 of 10 (90.0 %), 1,000 of 3,000 (33.3 %), 9 of 10 (91.0 %)"})) == 1, "percentages")
expect(len(gone({"a": "commits 0123456789ab and 0123456789ac"})) == 2 * (in_history("0123456789ab") is False), "commits")
expect(len(gone({"a": "`tests/none.py`, `tests/mutate.py` and `tests/moe/none.py` of vLLM"})) == 1, "paths")

found = rivals() + outcomes() + of_another_commit() + misbehaving() + wrong_figures()
texts = [os.path.join(SOURCE, name) for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
for file in texts + sorted(glob.glob(os.path.join(SOURCE, "docs/*.md"))):
    with open(file, encoding="utf-8") as stream:
        found += [f"{os.path.relpath(file, SOURCE)}:{line}: {number}: has no record and no command in its section"
                  for line, number in without_record(stream.read())]
texts = {}
for file in glob.glob(os.path.join(SOURCE, "docs/**/*.md"), recursive=True):
    with open(file, encoding="utf-8") as stream:
        texts[os.path.relpath(file, SOURCE)] = stream.read()
for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
    with open(os.path.join(SOURCE, name), encoding="utf-8") as stream:
        texts[name] = stream.read()
found += gone(texts) + wrong_percentages(texts)
pages = "".join(texts.values())
for file in sorted(glob.glob(os.path.join(SOURCE, "docs/results/20*"))):
    if not file.endswith(".svg"):
        with open(file, encoding="utf-8") as stream:
            found += [f"{os.path.relpath(file, SOURCE)}: does not say {need}"
                      for need in lacking(os.path.basename(file), stream.read(), pages)]
if found:
    sys.exit("\n".join(found))

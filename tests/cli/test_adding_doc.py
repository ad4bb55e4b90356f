# SPDX-License-Identifier: Apache-2.0
"""docs/adding.md: every path that it names exists, every list of files is as long as its table says, and every file
that names an example of a thing is in the list of that thing."""
import fnmatch
import os
import re

from program import SOURCE, expect

# Files of an addition, without tests and documents; it may be over it by what TODAY says, and by no more.
AIMS = {"a weight format": 10, "an activation function": 5, "an order": 5, "an operator": 8, "an injected bug": 1,
        "a command": 2, "a recipe": 1, "a kernel of ours": 4, "a kind of data": 5}
TODAY = {}
# What names an example of the thing, in code.
EXAMPLES = {"a weight format": r'\bGB_MXFP4\b|[" ]mxfp4[",]',
            "an activation function": r"\bGB_SWIGLU_OAI\b|swiglu-oai\b|gated\(enum gb_activation[^;{]*\{",
            "an order": r"\bGB_ORDER_MMA16_SM90\b|\bstruct gb_order gb_mma16\b", "an operator": r"\bGB_ROUTE\b|\boperator_\w+_route\b", "an injected bug": r"\bplant_weights_bf16\b",
            "a command": r"\bcommand_identify\b|X\(identify\)", "a kind of data": r"\bgb_generate_ties\b|default\), ties,",
            "a kernel of ours": r"\bgb_cuda_silu_mul_quantise\b"}
FOLDERS = ("quant", "reference", "fixtures", "harness", "gpu", "python")
CODE = (".c", ".h", ".cu", ".cuh", ".py")
PATH = re.compile(r"`((?:[\w.<>-]+/)+[\w.<>-]*\.\w+|[\w.]+\.(?:h|md))(?:#[\w<>-]*)?`")


def sections(text):
    """{name: text} of the second-level headings."""
    parts = re.split(r"(?m)^## (.*)\n", text)
    return {parts[i][0].lower() + parts[i][1:]: parts[i + 1] for i in range(1, len(parts), 2)}


def listed(section):
    """The first path of every item of the list under "Files:"."""
    items = re.search(r"(?s)\nFiles:\n\n(.*?)(?:\n\n|\Z)", section)
    expect(items, f"no list of files:\n{section}")
    found = [PATH.match(item) for item in re.split(r"(?m)^- ", items[1])[1:]]
    expect(all(found), f"an item begins with no path:\n{items[1]}")
    return [match[1] for match in found]


def examples(name, text):
    """The paths of a text; those with <...> stand for the one behind "like", which must have their shape."""
    for match in PATH.finditer(text):
        file = match[1]
        if "<" not in file:
            expect(os.path.exists(os.path.join(SOURCE, file)), f"docs/adding.md, {name}: there is no {file}")
            yield file
            continue
        like = re.match(r",?\s+like\s+`([^`]+)`", text[match.end():])
        if like:
            expect(fnmatch.fnmatch(like[1], re.sub(r"<\w+>", "*", file)), f"docs/adding.md, {name}: {like[1]}, {file}")


with open(os.path.join(SOURCE, "docs/adding.md")) as stream:
    document = stream.read()
table = {name: (int(files), int(aim)) for name, files, aim in
         re.findall(r"(?m)^\| \[(.*)\]\(#.*\) \| (\d+) \| (\d+) \|$", document)}
expect({name: aim for name, (_, aim) in table.items()} == AIMS, f"the table has the aims {table}")
known = list(examples("the first lines", document[:document.index("\n## ")]))
for name, section in sections(document).items():
    paths = set(examples(name, section))
    known += paths
    if name not in table:
        continue
    files = listed(section)
    expect(len(set(files)) == len(files), f"{name}: a file stands twice in {files}")
    expect(len(files) == table[name][0], f"{name}: {len(files)} files in the list, {table[name][0]} in the table")
    expect(len(files) == TODAY.get(name, len(files)) and (name in TODAY or len(files) <= AIMS[name]),
           f"{name}: {len(files)} files, of {AIMS[name]}; {TODAY.get(name)} so far: correct this test with it")
    expect(TODAY.get(name, AIMS[name] + 1) > AIMS[name], f"{name} has come to its aim: take it out of TODAY")
    if name not in EXAMPLES:
        continue
    naming = set()
    for folder in FOLDERS:
        for parent, _, names in os.walk(os.path.join(SOURCE, folder)):
            for file in (os.path.join(parent, file) for file in names if file.endswith(CODE)):
                with open(file) as stream:
                    lines = stream.read()
                if re.search(EXAMPLES[name], re.sub(r"(?s)/\*.*?\*/", "", lines)):
                    naming.add(os.path.relpath(file, SOURCE))
    expect(naming, f"{name}: nothing names its example")
    expect(naming <= paths, f"docs/adding.md, {name}: {sorted(naming - paths)} name it too")
expect(len(set(known)) > 80, f"only {len(set(known))} paths")
print(f"{len(set(known))} paths")

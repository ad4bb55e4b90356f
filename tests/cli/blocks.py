# SPDX-License-Identifier: Apache-2.0
"""The blocks of code and of commands in a document, as printed, and a shell that runs commands as a reader would."""

import dataclasses
import os
import re
import subprocess

from program import SOURCE, expect

COMMANDS = "gaugeblock build/gaugeblock cc cmake cp ctest export git make mkdir nvcc pip python python3 sed sh sha256sum".split()
KINDS = r"(?:not run|run instead|with|tested|long|file)(?=:)|prints$"  # of comments above a block: tests/cli/test_docs.py
WRONG = ("not right above a block", "no comment that says what to do with a block (tests/cli/test_docs.py)")


@dataclasses.dataclass
class Block:
    line: int
    language: str  # of a fenced block; "" of an indented one
    marker: str  # the comment above
    text: str

    def first_word(self):
        """Of the first command: assignments of its environment are none."""
        words = [word for word in self.text.split() if not re.match(r"\w+=", word)]
        return words[0] if words else ""

    def kind(self):
        marked = re.match(KINDS, self.marker)
        if marked:
            return marked[0]
        if self.language in ("sh", "bash", "console") or (not self.language and self.first_word() in COMMANDS):
            return "run"
        return "loose" if self.language in ("python", "c") else "text"

    def value(self):
        return self.marker.partition(":")[2].strip()

    def commands(self):
        return [line.strip() for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]


def blocks(document):
    """The fenced and the indented blocks of a document, whose path is relative to the clone."""
    with open(os.path.join(SOURCE, document)) as stream:
        lines = stream.read().splitlines() + [""]
    at = 0
    while at < len(lines):
        above = lines[at - 1].strip() if at else ""
        marker = above[4:-3].strip() if above.startswith("<!--") and above.endswith("-->") else ""
        known, block = re.match(KINDS, marker), lines[at].startswith(("    ", "```"))
        expect(not marker or bool(known) == block, f"{document}, line {at}: <!-- {marker} --> is {WRONG[block]}")
        fence = re.match(r"```(\w*)", lines[at])
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith("```"))
            yield Block(at + 1, fence[1] or "none", marker, "\n".join([*lines[at + 1 : end], ""]))
            at = end
        elif lines[at].startswith("    ") and (not above or marker):
            end = at
            while lines[end].startswith("    ") or (
                not lines[end] and end + 1 < len(lines) and lines[end + 1].startswith("    ")
            ):
                end += 1
            yield Block(at + 1, "", marker, "\n".join([*(line[4:] for line in lines[at:end]), ""]))
            at = end
        at += 1


def run_commands(commands, folder, environment, state):
    """Runs lines in a shell in this folder, with what was exported and where it went before: in the file `state`. Yields
    the exit code and the output of each."""
    script = f". {state}\n" if os.path.exists(state) else ""
    for number, command in enumerate(commands):
        script += f"{{ {command}\n}} >{state}.{number} 2>&1\necho $? >{state}.{number}.code\n"
    script += f"export -p >{state}; echo 'cd \"$PWD\"' >>{state}\n"
    subprocess.run(["sh", "-c", script], cwd=folder, env=environment, timeout=600, check=True)
    for number in range(len(commands)):
        with open(f"{state}.{number}") as out, open(f"{state}.{number}.code") as code:
            yield int(code.read()), out.read()


def block(document, language, number=0):
    """Block `number` of docs/`document` in this language."""
    return [one.text for one in blocks("docs/" + document) if one.language == language][number]

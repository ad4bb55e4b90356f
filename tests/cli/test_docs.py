# SPDX-License-Identifier: Apache-2.0
"""Every command of README.md and docs/*.md runs as printed, from top to bottom, in a folder of its document's own.

A block of commands is one that is fenced as sh, or whose first word is one of COMMANDS in blocks.py. Each line must end
with exit code 0, or with the N of `# exit code N` at its end. README.md runs in the clone (a folder that looks like
one), every other document in an empty folder, with an installed gaugeblock on PATH. An HTML comment right above a block
says what else there is to do with it:

    <!-- not run: REASON -->                     it is skipped, by name
    <!-- run instead: COMMAND; since REASON -->  COMMAND is run in its place
    <!-- with: COMMAND OPTION; since REASON -->  what begins with COMMAND is run with OPTION, too
    <!-- tested: FILE ... -->                    a test of its own runs it
    <!-- long: FILE ... -->                      it takes long: test_docs.py all runs it, or with its document named; FILE runs the like
    <!-- file: NAME -->                          it is what the reader saves as NAME
    <!-- prints -->                              what the commands before print has it; `...` stands for anything, numbers agree
                                                 within 1 % (the last digits of truth are the BLAS's, and expf is the C
                                                 library's)
"""

import glob
import os
import re
import subprocess
import sys

from blocks import blocks, run_commands
from program import ALL, PROGRAM, SOURCE, expect, path

LONG = bool(sys.argv[1:])  # whether what is marked as long is run

# Commands of blocks that run with `all` or their document named: other quick tests run the like.
ELSEWHERE = {
    "make demo": "test_demo.py",
    "gaugeblock bench --shape": "test_bench.py",
    "gaugeblock report bench.json": "test_report.py",
    "cc -shared -fPIC -O2 $(pkg-config --cflags gaugeblock) -o librouting.so": "test_kernels_doc.py",
    "python3 outputs.py": "test_outputs.py",
    "python3 several.py": "test_python_subjects.py",
    "python3 compare.py": "test_testing.py",
}
DEMO = [
    "build/gaugeblock import fixtures/data/tiny-qwen3-moe build/demo.h5 --format nvfp4 "
    "--capture fixtures/data/tiny-qwen3-moe/capture.safetensors",
    "build/gaugeblock verify build/demo.h5",
]

# What a test cannot do as printed: such a line needs one of the comments above.
NEVER = "apt-get docker git make sudo".split()
NUMBER = r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])"


def printed(expected, output):
    """Whether the output has what a document prints: the words in this sequence, and numbers that agree."""
    pattern, numbers = [], []
    for word in expected.split():
        if word == "...":
            pattern.append(".*?")
            continue
        numbers += re.findall(NUMBER, word)
        pattern.append(r"\s+" * bool(pattern) + NUMBER.join(map(re.escape, re.split(NUMBER, word))))
    found = re.search("".join(pattern), output, re.DOTALL)
    if not found:
        return False
    literal = re.compile(
        "".join(part if part == ".*?" else part.replace(NUMBER, f"({NUMBER})") for part in pattern), re.DOTALL
    )
    actual = literal.search(output).groups()
    return all(abs(float(a) - float(b)) <= 0.01 * abs(float(b)) for a, b in zip(actual, numbers))


def clone(folder):
    """A folder that looks like the clone: everything but what was built, of which it has the program."""
    for name in os.listdir(SOURCE):
        if not name.startswith(("build", ".git")):
            os.symlink(os.path.join(SOURCE, name), os.path.join(folder, name))
    os.mkdir(os.path.join(folder, "build"))
    os.symlink(PROGRAM, os.path.join(folder, "build", "gaugeblock"))


def installed():
    """The environment of someone who has installed gaugeblock and its Python package, and whose python3 has numpy."""
    prefix, tools = path("prefix"), path("tools")
    subprocess.run(
        ["cmake", "--install", os.environ["BUILD"], "--prefix", prefix], check=True, stdout=subprocess.DEVNULL
    )
    os.mkdir(tools)
    os.mkdir(path("tmp"))
    os.symlink(os.environ["PYTHON"], os.path.join(tools, "python3"))
    compiler = subprocess.run(
        ["sh", "-c", f"command -v {os.environ['CC']}"], check=True, capture_output=True, text=True
    )
    os.symlink(compiler.stdout.strip(), os.path.join(tools, "cc"))
    (pc,) = glob.glob(os.path.join(prefix, "lib*/**/gaugeblock.pc"), recursive=True)
    return {
        **os.environ,
        "PATH": os.pathsep.join([f"{prefix}/bin", tools, os.environ["PATH"]]),
        "TMPDIR": path("tmp"),
        "PYTHONPATH": os.path.join(SOURCE, "python"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PKG_CONFIG_PATH": os.path.dirname(pc),
    }


def with_option(block, here):
    """Its commands as <!-- with: --> has them."""
    *begin, option = block.value().rpartition("; since ")[0].split()
    begin = " ".join(begin)
    commands = block.commands()
    expect(any(f"{command} ".startswith(f"{begin} ") for command in commands), f"{here}: no command begins with {begin}")
    return [re.sub(rf"^{re.escape(begin)}(?!\S)", f"{begin} {option}", command) for command in commands]


def follow(document, environment):
    """Does what the document says. The number of commands run, and what was skipped."""
    folder = path(document.replace("/", "-"))
    os.mkdir(folder)
    if document == "README.md":
        clone(folder)
    ran, skipped, output, met = 0, [], "", set()
    for block in blocks(document):
        here, kind = f"{document}, line {block.line}", block.kind()
        missing = [
            name
            for name in re.findall(r"tests/[\w/.]*\w", block.marker)
            if not os.path.exists(os.path.join(SOURCE, name))
        ]
        expect(not missing, f"{here}: the comment names {missing}, which is not there")
        expect(
            kind != "loose",
            f"{here}: say above it what runs it: <!-- file: NAME -->, tested: or not run: (tests/cli/test_docs.py)",
        )
        if kind in ("not run", "tested") or (kind == "long" and not LONG):
            skipped.append(f"{here}: {block.marker}")
            output = None if kind == "long" else output
        elif kind == "file":
            with open(os.path.join(folder, block.value()), "w") as stream:
                stream.write(block.text)
        elif kind == "prints" and output is not None:
            expect(printed(block.text, output), f"{here}: the commands before print no such thing, but\n{output}")
        elif kind in ("run", "run instead", "with", "long"):
            commands = block.commands()
            elsewhere = [begin for begin in ELSEWHERE if any(command.startswith(begin) for command in commands)]
            met.update(elsewhere)
            if elsewhere and not LONG:
                skipped.append(f"{here}: {ELSEWHERE[elsewhere[0]]} runs the like")
                output = None
                continue
            if kind == "run instead":
                commands = [block.value().rpartition("; since ")[0]]
            elif kind == "with":
                commands = with_option(block, here)
            blank = re.search(r"(?<![\w$])[A-Z]{3,}(?:_[A-Z]+)*\b(?!=)", " ".join(commands))
            if blank:
                skipped.append(f"{here}: {blank[0]} is the reader's to fill in")
                continue
            for command in commands:
                expect(
                    kind == "run instead" or command.split()[0] not in NEVER,
                    f"{here}: {command}: say above it why it cannot run, <!-- not run: REASON --> (tests/cli/test_docs.py)",
                )
            output = ""
            for command, (code, said) in zip(commands, run_commands(commands, folder, environment, folder + ".state")):
                asked = re.search(r"# exit code (\d)$", command)
                expect(code == (int(asked[1]) if asked else 0), f"{here}: {command}: exit {code}\n{said}")
                output += said
                ran += 1
    return ran, skipped, met


def main():
    for expected, output, same in (
        ("1 of 3 at 2.50e-01, ... done", "x 1 of 3\n at 2.51e-01, then\nmore done", True),
        ("1 of 3 at 2.50e-01, ... done", "1 of 4 at 2.50e-01, done", False),
        ("1 of 3", "1 of", False),
        ("fma32/1 is 0.5", "fma32/2 is 0.5", False),
        ("a -1 b", "a 1 b", False),
    ):
        expect(printed(expected, output) == same, f"{expected!r} in {output!r}")
    environment = installed()
    documents = sys.argv[1:] if not ALL and LONG else ["README.md"] + sorted(
        f"docs/{os.path.basename(name)}" for name in glob.glob(f"{SOURCE}/docs/*.md")
    )
    total, elsewhere = 0, set()
    for document in documents:
        ran, skipped, met = follow(document, environment)
        total += ran
        elsewhere |= met
        for line in [f"{document}: {ran} commands"] * bool(ran) + [f"skipped: {line}" for line in skipped]:
            print(line)
    expect((LONG and not ALL) or total >= 20, f"only {total} commands were found")
    expect((LONG and not ALL) or elsewhere == set(ELSEWHERE), f"no document has {set(ELSEWHERE) - elsewhere}")
    demo = subprocess.run(["make", "-n", "demo"], cwd=SOURCE, check=True, capture_output=True, text=True).stdout
    expect([line for line in demo.splitlines() if line.startswith("build/gaugeblock")] == DEMO, f"make demo runs\n{demo}")


main()

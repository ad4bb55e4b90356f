#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts small mistakes into the code, one at a time, and counts those that the tests see.

A mutant is one edit of one line: a constant, a comparison, an operator, a rounding, a stride, a dropped statement or
check. Which ones is a matter of the seed alone. Work happens in copies of the tracked files below build/mutation: a
build that records which test reaches which line (gcov), and one that the mutants are built in, of which --at-once makes
more copies. A mutant is killed when a test that reaches its line fails or hangs; one whose object code is the original's
is none at all.

    python3 tests/mutate.py --seed 7 --count 50
    python3 tests/mutate.py --seed 7 --count 50 --folder harness --minutes 20
    python3 tests/mutate.py --seed 7 --count 300 --at-once 16 --jobs 2
    python3 tests/mutate.py --kept tests/mutants.txt
"""
import argparse
import concurrent.futures
import contextlib
import glob
import hashlib
import json
import math
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

FOLDERS = ["quant", "reference", "fixtures", "harness", "python"]
# Python is not traced: these are the tests that import the package, and that run fixtures/capture.py.
PYTHON_TESTS = {"python": re.compile("^cli_(python|testing|docs$)"), "fixtures": re.compile("^cli_(capture|models)")}


# Edits ---------------------------------------------------------------------------------------------------------------

SWAPS = {
    "<": ["<=", ">"], "<=": ["<", ">="], ">": [">=", "<"], ">=": [">", "<="], "==": ["!="], "!=": ["=="],
    "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["/"], "<<": [">>"], ">>": ["<<"],
    "&&": ["||"], "||": ["&&"], "&": ["|"], "|": ["&"], "+=": ["-=", "="], "-=": ["+=", "="], "*=": ["="],
    "|=": ["&=", "="], "&=": ["|=", "="], "and": ["or"], "or": ["and"], "is": ["is not"],
}
NAMES = {
    "fmin": "fmax", "fmax": "fmin", "fminf": "fmaxf", "fmaxf": "fminf", "floor": "ceil", "ceil": "floor",
    "rint": "trunc", "rintf": "truncf", "nearbyint": "trunc", "nearbyintf": "truncf", "isnan": "isinf",
    "isinf": "isnan", "true": "false", "false": "true", "True": "False", "False": "True", "continue": "break",
    "hidden": "intermediate", "intermediate": "hidden", "tokens": "top_k", "experts": "tokens", "rows": "columns",
    "columns": "rows", "min": "max", "max": "min", "any": "all", "all": "any", "INFINITY": "0.0", "sqrt": "fabs",
}
TOKEN = re.compile(
    r"(?P<number>\b0x[0-9A-Fa-f.]+(?:p[-+]?\d+)?[uUlLfF]*|\b\d+(?:\.\d*)?(?:[eE][-+]?\d+)?[uUlLfF]*)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<operator><<=|>>=|<=|>=|==|!=|&&|\|\||<<|>>|\+=|-=|\*=|/=|\|=|&=|\+\+|--|->|[-+*/%<>&|!~^=?:;,.(){}\[\]])")


# The room of an array that is declared here, in each of its dimensions, and how many are allocated where it is one: more
# changes nothing, and less is for sanitizers.
ROOM = re.compile(
    r"^\s*(?:static |const |struct |enum )*\w+ (?:\**\w+(?:\[[^]]*\])*(?: = [^,]*)?, )*\**\w+(?:\[[^]]*\])*\[$|\bcalloc\($")


def other_numbers(text):
    """A literal off by one, or in floating point by a thirtieth and by a factor of two."""
    digits = text.rstrip("uUlLfF") if not text.startswith("0x") or "p" in text else text.rstrip("uUlL")
    suffix = text[len(digits):]
    if digits.startswith("0x"):
        if "p" in digits:
            mantissa, exponent = digits.split("p")
            return [f"{mantissa}p{int(exponent) + 1}{suffix}", f"{mantissa}p{int(exponent) - 1}{suffix}"]
        value = int(digits, 16)
        return [hex(value + 1) + suffix, hex(value - 1 if value else 2) + suffix]
    if "." in digits or "e" in digits.lower():
        value = float(digits)
        return [repr(value * 0.97 if value else 1.0) + suffix, repr(value * 2 if value else -1.0) + suffix]
    value = int(digits)
    return [str(value + 1) + suffix, str(value - 1 if value else 2) + suffix]


def edits_of_token(match, line, python):
    """What one token may become."""
    text, kind = match.group(), match.lastgroup
    if kind == "number":
        return [] if ROOM.search(line[:match.start()]) else [("constant", new) for new in other_numbers(text)]
    if kind == "name" and text in ("and", "or", "is") and python:
        return [("operator", new) for new in SWAPS[text]]
    if kind == "name" and text in NAMES:
        return [("name", NAMES[text])]
    spaced = line[max(0, match.start() - 1)] == " " and line[match.end():match.end() + 1] == " "
    if kind == "operator" and text in SWAPS and spaced and (text not in "*&" or operand_before(line, match.start())):
        return [("operator", new) for new in SWAPS[text]]
    if kind == "operator" and text == "!" and not python:
        return [("negation", "")]
    return []


def operand_before(line, at):
    """Whether * or & has an operand on its left, so that it is no pointer's."""
    before = line[:at].rstrip()
    return bool(before) and (before[-1] in ")]" or before[-1].isalnum()) and not re.search(
        r"\b(const|struct \w+|float|double|char|void|u?int\d+_t|size_t|bool|json_t|gb_bf16|return)$", before)


STATEMENT = re.compile(r"^(\s*)((?:[\w.>*\[\]()+\- ]|->|, )+ (?:=|\+=|-=|\|=|&=) .*;|[\w.]+\(.*\);|(?:\+\+|--)?\w+(?:\+\+|--)?;)\s*$")
DECLARATION = re.compile(r"^\s*(?:static |const |struct |enum |unsigned |signed )*\w+ \**\w+(?:\[[^]]*\])* = ")
CONDITION = re.compile(r"^(\s*(?:\} else )?if )\((.*)\)( \{)?\s*$")


# Without these there is a leak, which sanitizers see, or less said where memory is short, which no test brings about.
NO_MEMORY = re.compile(r"GB_ENOMEM|\bno_memory\(")
ALL_ALLOCATED = re.compile(r"[^;{}]*\)\n\s*return GB_OK;\n\s*return [^;]*GB_ENOMEM")
UNSEEN = re.compile(r"\b(\w*free|free_\w+|json_decref|H5\wclose|close|progress\w*)\(|" + NO_MEMORY.pattern)


def edits_of_line(line, python):
    """[(kind, new line)] of a line without comments and strings (those are blanks of the same length)."""
    edits = []
    code = blanked(line, python)
    if not code.strip() or code.lstrip().startswith(("#", "@", "import ", "from ", "def ", "class ")):
        return edits
    for match in TOKEN.finditer(code):
        for kind, new in edits_of_token(match, code, python):
            edits.append((kind, line[:match.start()] + new + line[match.end():]))
    condition = CONDITION.match(code) if not python else re.match(r"^(\s*(?:el)?if )(.*)(:)\s*$", code)
    if condition and code.count("(") == code.count(")"):
        start, end = condition.span(2)
        for value in ("False", "True") if python else ("false", "true"):
            edits.append(("check", line[:start] + value + line[end:]))
    if not python and STATEMENT.match(code) and not DECLARATION.match(code) and code.count("(") == code.count(")"):
        indent = code[:len(code) - len(code.lstrip())]
        if not code.strip().startswith(("return", "case", "typedef", "goto")) and not UNSEEN.search(code):
            edits.append(("statement", indent + ";"))
    if python and re.match(r"^\s+(?:[\w.\[\]]+ (?:=|\+=) .*|[\w.]+\(.*\)|raise .*|assert .*|continue)$", code) and \
            code.count("(") == code.count(")") and code.count("[") == code.count("]"):
        indent = code[:len(code) - len(code.lstrip())]
        edits.append(("statement", indent + "pass"))
    return [(kind, new) for kind, new in edits if new != line]


def blanked(line, python):
    """The line with strings, characters and comments as blanks."""
    pattern = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'' + (r"|#.*" if python else r"|//.*|/\*.*?\*/")
    return re.sub(pattern, lambda m: " " * len(m.group()), line)


def code_lines(text, python):
    """Numbers of lines that are no part of a long comment, docstring or continued macro."""
    inside, numbers = False, []
    marker = '"""' if python else "/*"
    continued = False
    for number, line in enumerate(text.split("\n"), 1):
        before = inside
        if python:
            if line.count(marker) % 2:
                inside = not inside
        elif inside:
            inside = "*/" not in line
        elif marker in line and "*/" not in line[line.index(marker):]:
            inside = True
            before = not line[:line.index(marker)].strip()
        macro = continued or (not python and line.lstrip().startswith("#"))
        continued = macro and line.endswith("\\")
        if not before and not inside and not macro and not (python and marker in line):
            numbers.append(number)
    return numbers


def mutants_of(root, files):
    """{file: [(line number, kind, old, new)]}"""
    found = {}
    for name in files:
        with open(os.path.join(root, name), encoding="utf-8") as file:
            text = file.read()
        python, lines, found[name] = name.endswith(".py"), text.split("\n"), []
        for number in code_lines(text, python):
            line = lines[number - 1]
            rest = "\n".join(lines[number - 1:number + 7])
            if NO_MEMORY.search("\n".join(lines[number:number + 1])) or ALL_ALLOCATED.match(rest): # of what was allocated
                continue
            found[name] += [(number, kind, line, new) for kind, new in edits_of_line(line, python)]
    return found


def kept(path, root):
    """The mutants of a file that names them: a line `FILE[:FUNCTION] WHY`, then `- OLD` and `+ NEW`, lines without
    their indent. OLD is the first such line of the file, or behind FUNCTION's first; NEW may hold \\n."""
    found, head, old = [], None, None
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        line = line.rstrip("\n")
        if line.startswith("- "):
            old = line[2:]
        elif line.startswith("+ "):
            name, _, why = head.partition(" ")
            name, _, function = name.partition(":")
            with open(os.path.join(root, name), encoding="utf-8") as file:
                lines = file.read().split("\n")
            first = next((n for n, text in enumerate(lines) if not function or re.match(rf"\S.*\b{function}\(", text)), len(lines))
            at = next((n for n in range(first, len(lines)) if lines[n].strip() == old), None)
            if at is None:
                raise Failed(f"{path}:{number}: {name} has no line {old!r}")
            indent = lines[at][:len(lines[at]) - len(lines[at].lstrip())]
            found.append({"file": name, "line": at + 1, "kind": "kept", "why": why, "old": lines[at],
                          "new": indent + line[2:].replace("\\n", "\n" + indent)})
        elif line and not line.startswith("#"):
            head = line
    return found


def draw(mutants, seed, count):
    """`count` different mutants: a line at random, one of its edits at random."""
    rng = random.Random(seed)
    lines = {}
    for name in sorted(mutants):
        for number, kind, old, new in mutants[name]:
            lines.setdefault((name, number), []).append((kind, old, new))
    places = sorted(lines)
    drawn, seen = [], set()
    while len(drawn) < count and len(seen) < sum(map(len, lines.values())):
        name, number = rng.choice(places)
        kind, old, new = rng.choice(lines[name, number])
        if (name, number, new) not in seen:
            seen.add((name, number, new))
            drawn.append({"file": name, "line": number, "kind": kind, "old": old, "new": new})
    return drawn


# Builds and tests ----------------------------------------------------------------------------------------------------

class Failed(Exception):
    pass


def run(command, cwd=None, env=None, timeout=None, children=None):
    """(exit status or None for a hang, output). The command's whole process group ends with it. children: a set that
    holds the process while it runs."""
    child = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             stdin=subprocess.DEVNULL, start_new_session=True)
    children = set() if children is None else children
    children.add(child)
    try:
        output, _ = child.communicate(timeout=timeout)
        return child.returncode, output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return None, ""
    finally:
        children.discard(child)


def must(command, **arguments):
    status, output = run(command, **arguments)
    if status != 0:
        raise Failed(f"{' '.join(command)}: exit {status}\n{output[-4000:]}")
    return output


# Children that leave by _exit write their counts, too. What calls exec writes them first, and once only: a child by vfork
# would do it in its parent's place, which would then not write what it reaches later.
COVERED_EXIT = """#define vfork fork
extern void _exit(int) __attribute__((noreturn));
extern void __gcov_dump(void);
static inline __attribute__((unused, noreturn)) void gb_covered_exit(int status) { __gcov_dump(); _exit(status); }
#define _exit gb_covered_exit
"""


# Of a copy every command sees the copy in the place of the first, so that no path of the build differs, and has /tmp and
# /dev/shm to itself; no process is left of it. $1: the copy, $2: the place, $3: the working folder. /tmp is no tmpfs: on
# one every file can have seals, and cli_hostile's fixtures would be taken for memory that processes share.
APART = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", 'mount --bind "$1" "$2" && mount -t '
         'ramfs -o mode=1777 none /tmp && mount -t tmpfs none /dev/shm && cd "$3" && shift 3 && "$@"; exit $?', "sh"]


class Tree:
    """The copies of the sources and their builds, below build/mutation. files: where `where` really is."""

    def __init__(self, root, where, files=None):
        self.root, self.where, self.files = root, where, files or where
        self.source = os.path.join(where, "source")
        self.build = os.path.join(where, "build")
        self.map_build = os.path.join(where, "map-build")
        self.locks = {} # {RESOURCE_LOCK: that of it}

    def copy(self):
        """A clone with the working tree's tracked files, changed ones alone written anew. Returns a hash of all of them,
        and {file: hash}."""
        if not os.path.isdir(self.source):
            os.makedirs(self.where, exist_ok=True)
            must(["git", "clone", "--quiet", "--shared", self.root, self.source])
        digest, hashes = hashlib.sha256(), {}
        names = must(["git", "ls-files", "-z"], cwd=self.root).split("\0")
        for name in filter(None, names):
            path, to = os.path.join(self.root, name), os.path.join(self.source, name)
            if not os.path.isfile(path):
                continue
            with open(path, "rb") as file:
                data = file.read()
            hashes[name] = hashlib.sha256(data).hexdigest()[:12]
            digest.update(f"{name} {hashes[name]}\n".encode())
            old = open(to, "rb").read() if os.path.isfile(to) else None
            if old != data:
                os.makedirs(os.path.dirname(to), exist_ok=True)
                with open(to, "wb") as file:
                    file.write(data)
                shutil.copymode(path, to)
        for name in filter(None, must(["git", "ls-files", "-z"], cwd=self.source).split("\0")):
            if name not in hashes and os.path.isfile(os.path.join(self.source, name)):
                os.remove(os.path.join(self.source, name))
        return digest.hexdigest(), hashes

    def configure(self, build, flags):
        if shutil.which("ccache"): # a file that is as it was before is not compiled again
            flags = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", *flags]
        if shutil.which("mold"):
            flags = [*(f"-DCMAKE_{kind}_LINKER_FLAGS=-fuse-ld=mold" for kind in ("EXE", "SHARED", "MODULE")), *flags]
        must(["cmake", "-S", self.source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
              "-DGAUGEBLOCK_CUDA=OFF", "-DCMAKE_LINK_DEPENDS_NO_SHARED=ON", *flags])

    def apart(self, number):
        """One more copy of the sources and the build, to try a mutant in while others are tried."""
        files = os.path.join(self.where, "copies", str(number))
        shutil.rmtree(files, ignore_errors=True)
        os.makedirs(files)
        must(["cp", "-a", self.source, self.build, files])
        copy = Tree(self.root, self.where, files)
        status, output = copy.make(copy.build, 1)
        if status != 0:
            raise Failed(f"no build in a copy with namespaces of its own: exit {status}\n{output[-4000:]}")
        return copy

    def run(self, command, cwd, **arguments):
        if self.files != self.where:
            users = [] if os.geteuid() == 0 else ["--map-root-user"]
            command = ["unshare", *users, *APART, self.files, self.where, cwd, *command]
        return run(command, cwd=cwd, **arguments)

    def make(self, build, jobs):
        return self.run(["ninja", "-j", str(jobs)], build)

    def tests(self, build, pattern, labels):
        """[(name, command, environment, working folder, skip code)] of what CTest would run."""
        listed = json.loads(must(["ctest", "--show-only=json-v1"], cwd=build))["tests"]
        found = []
        for test in listed:
            properties = {p["name"]: p["value"] for p in test.get("properties", [])}
            if not set(properties.get("LABELS", [])) & labels or not re.search(pattern, test["name"]):
                continue
            found.append({"name": test["name"], "command": test["command"],
                          "env": dict(v.split("=", 1) for v in properties.get("ENVIRONMENT", [])),
                          "cwd": properties.get("WORKING_DIRECTORY", build),
                          "locks": sorted(properties.get("RESOURCE_LOCK", [])),
                          "skip": properties.get("SKIP_RETURN_CODE", 77)})
        return found

    def run_test(self, test, timeout, extra=None, children=None):
        env = {**os.environ, **test["env"], **(extra or {}), "OMP_NUM_THREADS": "1"}
        with contextlib.ExitStack() as held:
            for name in test["locks"]:
                held.enter_context(self.locks.setdefault(name, threading.Lock()))
            return self.run(test["command"], test["cwd"], env=env, timeout=timeout, children=children)


def lines_reached(tree, counts, hashes):
    """{file: {"hash", "lines"}} of the .gcda files below `counts`, of the folders that are mutated."""
    files = [f for f in glob.glob(counts + "/**/*.gcda", recursive=True)
             if "/__/" in f or not f.startswith(os.path.join(counts + tree.map_build, "tests"))] # none of the tests' own
    reached = {}
    for file in files: # gcov looks for the notes beside the counts
        notes = file[len(counts):-5] + ".gcno"
        if os.path.exists(notes) and not os.path.exists(file[:-5] + ".gcno"):
            os.symlink(notes, file[:-5] + ".gcno")
    for start in range(0, len(files), 40):
        output = run(["gcov", "--stdout", "--json-format", *files[start:start + 40]], cwd=counts)[1]
        for line in output.splitlines():
            if not line.startswith("{"):
                continue
            for entry in json.loads(line)["files"]:
                path = os.path.relpath(os.path.join(tree.map_build, entry["file"]), tree.source)
                if path.split("/")[0] in FOLDERS:
                    hit = reached.setdefault(path, set())
                    hit.update(row["line_number"] for row in entry["lines"] if row["count"])
    return {name: {"hash": hashes.get(name), "lines": sorted(hit)} for name, hit in reached.items() if hit}


def reach_map(tree, hashes, pattern, labels, options, say, time_is_up):
    """{test: {"seconds", "passes", "files": {file: {"hash", "lines"}}}}, kept in map.json test by test, so that an
    interrupted run goes on. Lines of a file that has changed since count as its file's; --fresh makes all anew."""
    path = os.path.join(tree.where, "map.json")
    known = json.load(open(path)) if os.path.exists(path) and not options.fresh else {}
    listed = {t["name"]: t for t in tree.tests(tree.build, pattern, labels)}
    if options.partial:
        return {name: known.get(name, {"seconds": 60, "passes": True, "files": None}) for name in listed}
    header = os.path.join(tree.where, "covered_exit.h")
    if not os.path.exists(os.path.join(tree.map_build, "build.ninja")):
        with open(header, "w") as file:
            file.write(COVERED_EXIT)
        tree.configure(tree.map_build, [f"-DCMAKE_C_FLAGS=--coverage -include {header}",
                                        "-DCMAKE_C_FLAGS_RELEASE=-O2 -DNDEBUG"])
    if listed.keys() - known.keys():
        say("building with coverage")
        status, output = tree.make(tree.map_build, options.jobs)
        if status != 0:
            raise Failed(output[-4000:])
    tests = [t for t in tree.tests(tree.map_build, pattern, labels) if t["name"] in listed]
    missing = [t for t in tests if t["name"] not in known]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in concurrent.futures.as_completed(
                [pool.submit(reached_by, tree, test, listed[test["name"]], hashes, time_is_up) for test in missing]):
            test, found, output = done.result()
            if found is None:
                continue
            if output:
                say(f"{test} fails without any mistake, so it is left out: {output}")
            known[test] = found
            say(f"{len(known)} of {len(tests)}: {test}, {found['seconds']:.1f} s")
            with open(path + ".new", "w") as file:
                json.dump(known, file)
            os.replace(path + ".new", path)
    if listed.keys() - known.keys():
        raise Failed(f"time is up: {len(known)} tests are known; the same command goes on")
    return {t["name"]: known[t["name"]] for t in tests}


def reached_by(tree, test, plain, hashes, time_is_up):
    """(test's name, its row of the map or None when time is up, what it says if it fails). plain: the test in the build
    that does not count."""
    if time_is_up():
        return test["name"], None, ""
    counts = os.path.join(tree.where, "counts-" + test["name"])
    shutil.rmtree(counts, ignore_errors=True)
    os.makedirs(counts)
    began = time.monotonic()
    status, output = tree.run_test(test, 900, {"GCOV_PREFIX": counts})
    found = {"seconds": time.monotonic() - began, "passes": status == 0,
             "files": lines_reached(tree, counts, hashes) if status == 0 else {}}
    shutil.rmtree(counts, ignore_errors=True)
    if status not in (0, test["skip"]) and tree.run_test(plain, 900)[0] == 0: # counting slows it down, or is in its way
        return test["name"], {"seconds": time.monotonic() - began, "passes": True, "files": None}, ""
    return test["name"], found, "" if status in (0, test["skip"]) else output[-300:].strip() or "it hangs"


def who_reaches(reach, mutant, hashes):
    """Tests that run the line or one of the three before it (a statement counts on its first line, and what the compiler
    has merged with another on one of the two); where gcov saw none (a process that was killed) or the file has changed
    since, those that run the file; and those that the map does not have."""
    name, line = mutant["file"], mutant["line"]
    if name.endswith(".py"):
        return [t for t in reach if PYTHON_TESTS[name.split("/")[0]].search(t) and reach[t]["passes"]]
    unknown = [t for t in reach if reach[t]["files"] is None]
    of = {t: reach[t]["files"][name] for t in reach if name in (reach[t]["files"] or {})}
    current = {t: set(of[t]["lines"]) for t in of if of[t]["hash"] == hashes[name]}
    stale = [t for t in of if t not in current]
    near = [t for t in current if current[t] & set(range(line - 3, line + 1))]
    return unknown + (stale + near if near else list(of))


def object_hash(tree, name):
    files = sorted(glob.glob(f"{tree.files}/build/**/{os.path.basename(name)}.o", recursive=True))
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as data:
            digest.update(data.read())
    return digest.hexdigest()


def by_promise(reach, mutant, kills):
    """Order of tests: quick ones, those that have killed mutants of the file, and those that run little else, first."""
    def cost(test):
        files = reach[test]["files"] or {}
        own = len(files.get(mutant["file"], {"lines": []})["lines"])
        share = own / max(1, sum(len(file["lines"]) for file in files.values()))
        return (0.5 + reach[test]["seconds"]) / (1 + 2 * kills.get((test, mutant["file"]), 0) + 10 * share)
    return cost


def first_red(tree, names, tests, reach, jobs, time_is_up):
    """(name, whether it hung, what it said) of the first test that fails, or None, and the tests that no time was left
    for. The others are ended when one fails."""
    children, red, left, lock = set(), [], [], threading.Lock()

    def one(name):
        if red or name not in tests:
            return
        if time_is_up():
            left.append(name)
            return
        status, output = tree.run_test(tests[name], 20 + 6 * reach[name]["seconds"], children=children)
        with lock:
            if status not in (0, tests[name]["skip"]) and not red:
                red.append((name, status is None, output[-200:].strip()))
                for child in list(children):
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, names))
    return (red[0] if red else None), left


def try_mutant(tree, mutant, reaching, reach, tests, object_code, jobs, time_is_up):
    """Fills in `verdict`: killed, survived, undecided, equivalent or unbuildable. object_code: its hash without mistakes"""
    path = os.path.join(tree.files, "source", mutant["file"])
    with open(path, encoding="utf-8") as file:
        original = file.read()
    lines = original.split("\n")
    if lines[mutant["line"] - 1] != mutant["old"]:
        raise Failed(f"{path}:{mutant['line']} is not what was read")
    lines[mutant["line"] - 1] = mutant["new"]
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        if tree.make(tree.build, jobs)[0] != 0:
            mutant["verdict"] = "unbuildable"
            return
        if mutant["file"].endswith(".c") and object_hash(tree, mutant["file"]) == object_code:
            mutant["verdict"] = "equivalent"
            return
        red, left = first_red(tree, reaching, tests, reach, jobs, time_is_up)
        mutant["verdict"] = "killed" if red else "undecided" if left else "survived"
        mutant["left"] = left
        if red:
            mutant.update(by=red[0], hang=red[1], says=red[2])
    finally:
        with open(path, "w", encoding="utf-8") as file:
            file.write(original)


class Record:
    """What is known of mutants, kept line by line, so that an interrupted run goes on; and which test has killed mutants
    of which file."""

    def __init__(self, path, known, of_all):
        self.path, self.known, self.of_all, self.lock = path, known, of_all, threading.Lock()
        self.kills = {}
        for mutant in known.values():
            self.count(mutant)

    def count(self, mutant):
        if mutant["verdict"] == "killed":
            key = mutant["by"], mutant["file"]
            self.kills[key] = self.kills.get(key, 0) + 1

    def of(self, mutant):
        return self.known.get((mutant["file"], mutant["line"], mutant["new"]))

    def add(self, mutant):
        mutant.update(self.of_all)
        with self.lock, open(self.path, "a") as file:
            file.write(json.dumps(mutant) + "\n")
            self.count(mutant)


def campaign(tree, drawn, record, reach, tests, hashes, options, time_is_up, say):
    """Tries the mutants, options.at_once at a time, and returns those that have a verdict."""
    trees, objects = queue.SimpleQueue(), {m["file"]: object_hash(tree, m["file"]) for m in drawn}
    for copy in [tree.apart(n) for n in range(options.at_once)] if options.at_once > 1 else [tree]:
        trees.put(copy)

    def one(number, mutant):
        before = record.of(mutant)
        if before and before["verdict"] != "undecided":
            return before
        reaching = before["left"] if before else who_reaches(reach, mutant, hashes)
        copy = trees.get()
        try:
            since = time.monotonic()
            if time_is_up():
                return before
            mutant.update(hash=hashes[mutant["file"]], tests=len(reaching))
            try_mutant(copy, mutant, sorted(reaching, key=by_promise(reach, mutant, record.kills)), reach, tests,
                       objects[mutant["file"]], options.jobs, lambda: time_is_up() or (
                           options.seconds and time.monotonic() - since > options.seconds))
            mutant["seconds"] = round(time.monotonic() - since, 1)
            record.add(mutant)
            say(f"{number} of {len(drawn)}: {mutant['file']}:{mutant['line']} {mutant['verdict']} "
                f"{mutant.get('by', '')} ({mutant['seconds']} s)")
            return mutant
        finally:
            trees.put(copy)

    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        done = [m for m in pool.map(one, range(1, len(drawn) + 1), drawn) if m]
    if len(done) < len(drawn):
        say(f"time is up: {len(done)} of {len(drawn)} mutants")
    return done


# The record ----------------------------------------------------------------------------------------------------------

def place_of(mutant):
    return f"{mutant['file']}:{mutant['line']}"


# What a reason begins with of a mutant that does not count: it changes nothing that can be seen, or it did not run here.
UNCOUNTED = ("equivalent: ", "not run: ")


def judgements(path, done):
    """{FILE:LINE: reason} from lines FILE:LINE REASON on mutants that no test has killed."""
    reasons = dict(line.rstrip("\n").split(" ", 1) for line in open(path)) if path else {}
    unknown = reasons.keys() - {place_of(m) for m in done if m["verdict"] in ("survived", "undecided")}
    if unknown:
        raise Failed(f"{path}: no survivor at {', '.join(sorted(unknown))}")
    return reasons


def is_counted(mutant, reasons):
    return mutant["verdict"] == "killed" or not reasons.get(place_of(mutant), "").startswith(UNCOUNTED)


def summary(done, reasons):
    """[(folder, killed, counted, share)] and the survivors, of those that are mutants at all."""
    rows = []
    done = [m for m in done if is_counted(m, reasons)]
    for folder in [*FOLDERS, "all"]:
        of = [m for m in done if folder in ("all", m["file"].split("/")[0]) and m["verdict"] in ("killed", "survived")]
        killed = sum(m["verdict"] == "killed" for m in of)
        if of:
            rows.append((folder, killed, len(of), killed / len(of)))
    return rows, [m for m in done if m["verdict"] == "survived"]


def chance_of_so_few(killed, of, share):
    """Of `of` mutants at most `killed` killed, where each is with the probability `share`."""
    return sum(math.comb(of, k) * share**k * (1 - share)**(of - k) for k in range(killed + 1))


def write_record(path, done, reasons, rows, root):
    """What was found, as JSON for docs/results/."""
    left = [m for m in done if m["verdict"] in ("survived", "undecided")]
    with open("/proc/cpuinfo") as file:
        cpu = dict(re.findall(r"^(model name|flags)\s*: (.*)$", file.read(), re.MULTILINE))
    found = {
        "schema": "gaugeblock.mutation/1", "command": " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": must(["git", "rev-parse", "--short=12", "HEAD"], cwd=root).strip(),
        "cpu": f"{cpu['model name']}, {'with' if 'avx512f' in cpu['flags'].split() else 'without'} AVX-512",
        "drawn": len(done), "killed_of": {folder: [killed, of] for folder, killed, of, _ in rows},
        "same_object_code": sum(m["verdict"] == "equivalent" for m in done),
        "not_compiled": sum(m["verdict"] == "unbuildable" for m in done),
        "not_killed": [{"at": place_of(m), "verdict": m["verdict"], "old": m["old"].strip(), "new": m["new"].strip(),
                        "reason": reasons.get(place_of(m))} for m in left]}
    with open(path, "w") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


def report(done, reasons):
    rows, survivors = summary(done, reasons)
    print(f"{'folder':<12}{'killed':>8}{'of':>6}{'score':>8}")
    for folder, killed, of, share in rows:
        print(f"{folder:<12}{killed:>8}{of:>6}{100 * share:>7.1f}%")
    equal = sum(m["verdict"] == "equivalent" for m in done)
    unbuilt = sum(m["verdict"] == "unbuildable" for m in done)
    undecided = [m for m in done if m["verdict"] == "undecided"]
    by_reason = sum(not is_counted(m, reasons) for m in done)
    print(f"not counted: {equal} with the original's object code, {unbuilt} that do not compile, {len(undecided)} that no "
          f"time was left for, {by_reason} by a reason given")
    for m in survivors + undecided:
        print(f"{m['verdict']}: {m['file']}:{m['line']} ({m['kind']}, {m.get('tests', 0)} tests reach it)\n"
              f"  - {m['old'].strip()}\n  + {m['new'].strip()}")
    return rows


# Lines, and edits that must be among theirs; none of the last four.
EXAMPLES = [
    ("    if (a < b && !done)", ["    if (a <= b && !done)", "    if (a < b || !done)", "    if (a < b && done)",
                                 "    if (false)", "    if (true)"]),
    ("    r.worst = 1.1 * gate.worst + own;", ["    ;", "    r.worst = 1.1 / gate.worst + own;",
                                               "    r.worst = 1.1 * gate.worst - own;",
                                               "    r.worst = 2.2 * gate.worst + own;"]),
    ("    for (uint32_t i = 0; i < w->shape->hidden; i++)", ["    for (uint32_t i = 1; i < w->shape->hidden; i++)",
                                                             "    for (uint32_t i = 0; i <= w->shape->hidden; i++)",
                                                             "    for (uint32_t i = 0; i < w->shape->intermediate; i++)"]),
    ("    return fmin(worst, 0x1p-120);", ["    return fmax(worst, 0x1p-120);", "    return fmin(worst, 0x1p-119);"]),
    ("    *value = rint(x); /* 3 < 4 */", ["    *value = trunc(x); /* 3 < 4 */"]),
    ('#define N 3', []), ('    char text[80];', []), ('    const char *text = "a < 3";', []), ("    /* a < 3 */", []),
]


def check_edits():
    """Whether edits are what they are meant to be, and a seed always draws the same."""
    for line, wanted in EXAMPLES:
        made = [new for _, new in edits_of_line(line, False)]
        missing = [new for new in wanted if new not in made]
        if missing or line in made or (not wanted and made):
            raise Failed(f"of {line!r} is made {made}, not {missing}")
    text = "/* a\n 3 */\nint f(int a)\n{\n    return a + 3;\n}\n#define M \\\n 4\n"
    if code_lines(text, False) != [3, 4, 5, 6, 9]:
        raise Failed(f"lines of code: {code_lines(text, False)}")
    python = ["    if x is None and y > 3:", "    total += count"]
    if ("check", "    if False:") not in edits_of_line(python[0], True) or ("statement", "    pass") not in edits_of_line(
            python[1], True):
        raise Failed("edits of Python")
    chances = [chance_of_so_few(9, 10, 1.0), chance_of_so_few(10, 10, 1.0), chance_of_so_few(1, 2, 0.5)]
    if chances != [0.0, 1.0, 0.75]:
        raise Failed(f"chances of samples: {chances}")
    tried = [{"file": "quant/a.c", "line": line, "verdict": verdict}
             for line, verdict in ((1, "killed"), (1, "survived"), (2, "survived"), (3, "killed"))]
    rows, survivors = summary(tried, {"quant/a.c:1": "equivalent: room", "quant/a.c:2": "open"})
    if rows[0] != ("quant", 2, 3, 2 / 3) or survivors != tried[2:3]:
        raise Failed(f"what a reason takes off the count: {rows}, {survivors}")
    mutants = {"a.c": [(n, kind, line, new) for n, (line, _) in enumerate(EXAMPLES, 1)
                       for kind, new in edits_of_line(line, False)]}
    if draw(mutants, 5, 9) != draw(mutants, 5, 9) or draw(mutants, 5, 9) == draw(mutants, 6, 9):
        raise Failed("a seed does not say what is drawn")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="which mutants are drawn (1)")
    parser.add_argument("--count", type=int, default=50, help="how many (50)")
    parser.add_argument("--folder", action="append", metavar="PREFIX",
                        help="only of files whose path begins so; may be repeated (all of " + ", ".join(FOLDERS) + ")")
    parser.add_argument("--kept", metavar="FILE", help="try the mutants that FILE names instead, as tests/mutants.txt does")
    parser.add_argument("--tests", default=".", metavar="REGEX", help="only tests whose name matches")
    parser.add_argument("--labels", default="unit", help="labels of tests, commas between: unit is `make test` (unit)")
    parser.add_argument("--minutes", type=float,
                        help="end after so many, with exit code 3 unless --least is given; the next run goes on")
    parser.add_argument("--partial", action="store_true",
                        help="do not go on with the map: a test that it does not have may reach any line")
    parser.add_argument("--seconds", type=float, 
                        help="of tests a mutant: what none has killed then is undecided until the next run, which goes on")
    parser.add_argument("--least", type=float, metavar="PERCENT",
                        help="fail where so few are killed, of all or of a folder, as one sample in 1000 has of code of "
                        "which the tests see so many; with 100 where one survives")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of a build, and tests of a mutant at once")
    parser.add_argument("--at-once", type=int, default=1, metavar="N",
                        help="mutants tried at once, each with --jobs, in copies and namespaces of their own (1)")
    parser.add_argument("--work", help="where copies and builds are kept (build/mutation)")
    parser.add_argument("--fresh", action="store_true", help="find out anew which test reaches which line")
    parser.add_argument("--check", action="store_true", 
                        help="check what edits are made of a few lines, and that kept mutants have theirs; no more")
    parser.add_argument("--list", action="store_true", help="print the mutants, and try none")
    parser.add_argument("--report", action="store_true", help="print what all runs on these sources found")
    parser.add_argument("--judged", metavar="FILE", help="lines FILE:LINE REASON on survivors; one that begins with "
                        "'equivalent: ' or 'not run: ' is not counted")
    parser.add_argument("--record", metavar="FILE", help="write what was found as JSON")
    return parser.parse_args()


def main():
    options = arguments()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    check_edits()
    if options.check:
        print(f"{len(kept(os.path.join(root, 'tests/mutants.txt'), root))} kept mutants have their line")
        return 0
    where = os.path.abspath(options.work or os.path.join(root, "build", "mutation"))
    tree = Tree(root, where)
    began = time.monotonic()

    def time_is_up():
        return options.minutes and time.monotonic() - began > 60 * options.minutes

    def say(text):
        print(f"[{time.monotonic() - began:6.0f} s] {text}", file=sys.stderr, flush=True)

    digest, hashes = tree.copy()
    names = must(["git", "ls-files", "-z", *FOLDERS], cwd=root).split("\0")
    files = sorted(n for n in names if n.endswith((".c", ".py")) and any(n.startswith(p) for p in options.folder or FOLDERS))
    if options.kept:
        drawn = [m for m in kept(options.kept, root) if any(m["file"].startswith(p) for p in options.folder or FOLDERS)]
    else:
        drawn = draw(mutants_of(root, files), options.seed, options.count)
    if options.list:
        for m in drawn:
            print(f"{m['file']}:{m['line']} {m['kind']}\n  - {m['old'].strip()}\n  + {m['new'].strip()}")
        return 0
    path = os.path.join(where, "results.jsonl")
    known = {}
    if os.path.exists(path):
        for line in open(path):
            m = json.loads(line)
            same = m["digest"] == digest or m["verdict"] not in ("survived", "undecided") # other tests kill more, hardly less
            if same and m["hash"] == hashes.get(m["file"]) and m["selection"] == [options.tests, options.labels]:
                known[m["file"], m["line"], m["new"]] = m
    if options.report:
        report(list(known.values()), {})
        return 0
    labels = set(options.labels.split(","))
    if not os.path.exists(os.path.join(tree.build, "build.ninja")):
        tree.configure(tree.build, ["-DCMAKE_C_FLAGS_RELEASE=-O2 -DNDEBUG"])
    say("building without any mistake")
    status, output = tree.make(tree.build, options.jobs)
    if status != 0:
        raise Failed(output[-4000:])
    tests = {t["name"]: t for t in tree.tests(tree.build, options.tests, labels)}
    reach = reach_map(tree, hashes, options.tests, labels, options, say, time_is_up)
    record = Record(path, known, {"digest": digest, "seed": options.seed, "selection": [options.tests, options.labels]})
    done = campaign(tree, drawn, record, reach, tests, hashes, options, time_is_up, say)
    reasons = judgements(options.judged, done)
    rows = report(done, reasons)
    if options.record:
        write_record(options.record, done, reasons, rows, root)
    none = [m for m in done if options.kept and m["verdict"] in ("equivalent", "unbuildable")]
    for m in none:
        print(f"mutate: {m['file']}:{m['line']} is {m['verdict']}, so it tests nothing: {m['new'].strip()}", file=sys.stderr)
    if none:
        return 1
    if len(done) < len(drawn) and (options.kept or options.least is None):
        return 3
    few = [folder for folder, killed, of, _ in rows if options.least is not None and
           chance_of_so_few(killed, of, options.least / 100) < 1e-3]
    if few:
        print(f"mutate: {', '.join(few)}: not {options.least} %; see the survivors above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        print(f"mutate: {failure}", file=sys.stderr)
        sys.exit(2)

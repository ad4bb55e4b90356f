# SPDX-License-Identifier: Apache-2.0
"""No circle among object files: where a.c uses a symbol of b.c, nothing that b.c uses, however far down, is in a.c.
Usage: test_circles.py NM BUILD_DIR OBJECTS, a file that names the libraries' objects, one a line."""
import collections
import re
import subprocess
import sys

DEFINED = "ABCDGRSTVWi"


def name(build, path):
    """reference/truth/layer.c of BUILD_DIR/reference/CMakeFiles/TARGET.dir/truth/layer.c.o."""
    return re.sub(r"CMakeFiles/\w+\.dir/(\./)?", "", path[len(build) + 1:])[:-len(".o")]


def arrows(nm, build, objects):
    """{file: {file it uses: one symbol that it takes from there}}."""
    uses, home = collections.defaultdict(set), {}
    text = subprocess.run([nm, "-A", *objects], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        path, rest = line.split(".o:", 1)
        words = rest.split()
        if words[-2] == "U":
            uses[name(build, path + ".o")].add(words[-1])
        elif words[-2] in DEFINED:
            home[words[-1]] = name(build, path + ".o")
    return {file: {home[s]: s for s in sorted(uses[file]) if home.get(s, file) != file}
            for file in (name(build, path) for path in objects)}


def circle(graph, start):
    """The shortest way from a file back to it; None if there is none."""
    before, queue = {}, collections.deque([start])
    while queue:
        file = queue.popleft()
        for used in graph[file]:
            if used == start:
                way = [start, file]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return way[::-1] if file != start else [start, start]
            if used not in before:
                before[used] = file
                queue.append(used)
    return None


def main(nm, build, listed):
    with open(listed) as stream:
        objects = stream.read().split()
    graph = arrows(nm, build, objects)
    count = sum(map(len, graph.values()))
    for known in (("reference/layer.c", "reference/gate_up.c"), ("harness/program/main.c", "harness/program/verify.c"),
                  ("harness/program/study.c", "harness/study/run.c")):
        if known[1] not in graph.get(known[0], {}):
            sys.exit(f"test_circles: {known[0]} does not use {known[1]}: the objects are not read as they are")
    found = min((way for way in (circle(graph, file) for file in graph) if way), key=len, default=None)
    if found:
        sys.exit("test_circles: " + found[0] + "".join(f"\n    -> {b} ({graph[a][b]})" for a, b in zip(found, found[1:])))
    print(f"{len(graph)} files, {count} arrows, no circle")


main(*sys.argv[1:])

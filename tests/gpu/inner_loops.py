#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the compiler makes of fma32's kernels on NVFP4 in whole chunks, for docs/gpu.md: registers, bytes of stack, and the
instructions of the inner loop per weight, from cuobjdump.

    python3 tests/gpu/inner_loops.py build/libgaugeblock-cuda.so --date DATE --commit COMMIT
"""
import argparse
import re
import subprocess
import sys

KERNELS = re.compile(r"void (gb_(?:gate_up|down)_kernel<gb_cuda_nvfp4<true>, gb_\w+_tile<[^>]*> >)\(")
CODES = 32  # of E2M1 in one LDG.E.128


def listing(option, library):
    """What cuobjdump prints, by the kernel's name."""
    text = subprocess.run(["cuobjdump", "-arch", "sm_90a", option, library], capture_output=True, text=True, check=True).stdout
    names = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True).stdout
    parts = re.split(r"\n\s*Function :? ?", names)[1:]
    return {found[1].replace(" ", ""): part for part in parts if (found := KERNELS.match(part))}


def inner_loop(sass):
    """(instructions, weights) of the loop that every chunk but the last passes: of those that load weights and have no loop
    within them the one with the most fma a weight, for all of a tile's tokens, and of these the shortest."""
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", sass)]
    loops = []
    for end, text in code:
        to = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        if to and int(to[1], 16) < end:
            loops.append((int(to[1], 16), end))
    loops = list({head: (head, end) for head, end in sorted(loops)}.values()) # to the last branch back to its head
    def count(loop, what):
        return sum(loop[0] <= at <= loop[1] and what in text for at, text in code)
    inner = [loop for loop in loops if count(loop, "LDG.E.128") and count(loop, "FFMA")
             and not any(loop != other and loop[0] <= other[0] and other[1] <= loop[1] for other in loops)]
    best = max(inner, key=lambda loop: (count(loop, "FFMA") / count(loop, "LDG.E.128"), -count(loop, "")))
    return count(best, ""), CODES * count(best, "LDG.E.128")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("library")
parser.add_argument("--date", required=True)
parser.add_argument("--commit", required=True)
options = parser.parse_args()
usage, sass = (listing(option, options.library) for option in ("-res-usage", "-sass"))
if not sass or usage.keys() != sass.keys():
    sys.exit(f"{options.library}: no kernels of fma32 on NVFP4 for sm_90a")
print(f"python3 tests/gpu/inner_loops.py libgaugeblock-cuda.so, no GPU, date {options.date}, commit {options.commit}, sm_90a\n")
print(f"{'kernel, with its tile':80} {'registers':>9} {'stack':>5} {'instructions':>12} {'weights':>7} {'each':>6}")
for name in sorted(sass, reverse=True):
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage[name]).groups()
    instructions, weights = inner_loop(sass[name])
    print(f"{name:80} {registers:>9} {stack:>5} {instructions:>12} {weights:>7} {instructions / weights:>6.3f}")

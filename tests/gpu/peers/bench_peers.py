# SPDX-License-Identifier: Apache-2.0
"""Another project's layer, as bench_monomoe or bench_marlin times it, beside the repacked kernels of mma16-sm90/1 on
the same experts: the layer on given ids, and the layer that computes its router's logits and routes by itself.

    python3 bench_peers.py PEER BENCH_MMA16 LIBRARY FORMAT... --date DATE --commit COMMIT

JSON on stdout."""
import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import beside  # noqa: E402

PAIRS = {"layer": "us", "routed-layer": "routed_us"}  # ours, the peer's: with logits computed, where it has such a time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer")
    parser.add_argument("bench")
    parser.add_argument("library")
    parser.add_argument("formats", nargs="+", choices=("nvfp4", "mxfp8", "mxfp4"))
    parser.add_argument("--date", required=True)
    parser.add_argument("--commit", required=True)
    asked = parser.parse_args()
    done = subprocess.run([asked.peer], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{asked.peer} ended with {done.returncode}: {done.stdout.strip()}")
    record = json.loads(done.stdout)
    shape = [record[name] for name in ("experts", "top_k", "hidden", "intermediate")]
    batches = [row["batch"] for row in record["batches"]]
    for form in asked.formats:
        ours = beside.repacked(asked.bench, asked.library, form, shape, batches)
        for row in record["batches"]:
            row[form] = {name: {"us": us, "times_as_fast": round(row[theirs] / us, 2)}
                         for name, theirs in PAIRS.items() if theirs in row
                         for us in [ours[row["batch"]][name]]}  # fmt: skip
    command = f"bench_peers.py {os.path.basename(asked.peer)} {' '.join(sys.argv[4:])}"
    print(json.dumps({"schema": "gaugeblock.bench-peers/1", "command": command, "date": asked.date,
                      "commit": asked.commit, **record}, indent=1))


if __name__ == "__main__":
    main()

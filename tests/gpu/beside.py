# SPDX-License-Identifier: Apache-2.0
"""The times of the repacked kernels of mma16-sm90/1, for programs that set others beside them."""
import json
import subprocess


def repacked(bench, library, form, shape, batches):
    """Of bench_mma16: {batch: {"layer": us, "routed-layer": us}}. shape: experts, top_k, hidden, intermediate."""
    command = [bench, library, "time", f"{form}:repacked", ",".join(map(str, shape)), *map(str, batches)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {row["batch"]: {name: row["repacked"][name][0] for name in ("layer", "routed-layer")}
            for row in json.loads(done.stdout)["batches"]}  # fmt: skip

# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/results/README.md from the records that `gaugeblock verify` and `gaugeblock power` wrote.
Usage: records.py layers|outputs|power|hashes|verify|kernels|bench RECORD...
       records.py study RECORD STUDY.h5...
  layers   one row for each fixture and contract, over all kernels and batches
  outputs  one row for each case: files of outputs, which claim no order
  power    one row for each record: what every policy catches, and the smallest errors that the default one sees
  hashes   JSON: the hashes of every case's outputs, by fixture and batch, for tests/cli/test_results.py
  verify   JSON: how many words of each fixture were compared, and differ
  kernels  JSON: the verdict on each kernel
  bench    JSON: medians of what `gaugeblock bench` timed
  study    JSON: the content hash of each study, which says what device computed it; RECORD says on which machine"""
import json
import os
import sys


def read(path):
    with open(path) as stream:
        return json.load(stream)


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def figure(value):
    return "-" if value is None else f"{value:.3g}"


def most(values):
    known = [value for value in values if value is not None]
    return max(known) if known else None


def source(record):
    environment = record["environment"]
    return environment["date"][:10], environment["commit"]


def distance(cases, truth, name, choose):
    return choose([case["metrics"]["overall"].get("subject_truth", {}).get(truth, {}).get(name) for case in cases
                   if case["metrics"].get("overall")])


def check(cases, name, key):
    return most([case["checks"][name].get(key) for case in cases if name in case.get("checks", {})])


def layers(record):
    groups = {}
    for case in record["cases"]:
        groups.setdefault((case["fixture"]["path"], case["contract"]), []).append(case)
    for (fixture, contract), cases in groups.items():
        verdicts = {verdict: sum(case["verdict"] == verdict for case in cases)
                    for verdict in sorted({case["verdict"] for case in cases})}
        yield (bare(fixture).removesuffix(".h5"), contract, len(cases),
               ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()),
               sum(case["checks"]["bits"]["compared"] for case in cases),
               sum(case["checks"]["bits"]["mismatching"] for case in cases),
               figure(check(cases, "bound", "limit_ratio")),
               figure(distance(cases, "quantised", "relative_l2", most)),
               figure(distance(cases, "original", "relative_l2", most)), *source(record))


def detected(case, name):
    for family in case["checks"].get("scale", {}).get("families", []):
        if family["name"] == name:
            return family["detection_limit_smallest"]
    return None


def outputs(record):
    for case in record["cases"]:
        bound = [layer["bound"] for layer in case["metrics"]["layers"]]
        yield (case["fixture"]["path"].removesuffix(".h5"), case["batch"], case["verdict"],
               sum(part["exceeding"] for layer in bound for part in layer.values()),
               *[figure(check([case], name, "limit_ratio")) for name in ("bound", "rms", "scale")],
               figure(detected(case, "scale of the layer")), *source(record))


def power(record):
    """A policy's cell: how many injected bugs it catches; R: it rejects the reference itself, V: it is VACUOUS."""
    limits = record["policies"][0]["detection_limits"]
    changing = [fault for fault in record["injected_bugs"] if fault["changed"]]
    routing = [fault for fault in record["router_bugs"] or [] if fault["changed_tokens"]]
    mark = {"PASS": "", "FAIL": " R", "VACUOUS": " V"}
    yield (record["contract"], len(changing), *[f"{gate['caught']}{mark[gate['verdict']]}" for gate in record["policies"]],
           f"{sum(bool(fault['caught_by']) for fault in routing)} of {len(routing)}",
           *[figure(limits.get(name)) for name in ("scale", "scale_of_a_row", "noise_of_the_intermediate",
                                                   "scale_given_the_intermediate")],
           "; ".join(fault["name"] for fault in changing if not fault["caught_by"]["default"]) or "-", *source(record))


def bare(argument):
    """Without the folder of the machine it was made on."""
    return os.path.basename(argument) if os.path.isabs(argument) else argument


def hashes(record):
    """{fixture's path: {"tokens", "batches": {batch: hash of outputs and intermediates of all layers}}}"""
    found = {}
    for case in record["cases"]:
        fixture = found.setdefault(bare(case["fixture"]["path"]), {"tokens": case["fixture"]["tokens"], "batches": {}})
        fixture["batches"][str(case["batch"])] = [
            layer[key] for layer in case["metrics"]["layers"] for key in ("output_sha256", "intermediate_sha256")]
    return found


def made_of(records, schema):
    """What a summary says of where its records were made."""
    environment = records[0]["environment"]
    command = " ".join(["gaugeblock", *map(bare, records[0]["command"][1:])])
    return {"schema": schema, "command": command, "date": environment["date"][:10], "commit": environment["commit"],
            "device": records[0]["cases"][0]["subject"]["device"], "cpu": environment["cpu"]}


def verified(records):
    """The cases of each fixture."""
    groups = {}
    for case in (case for record in records for case in record["cases"]):
        groups.setdefault(case["fixture"]["path"], []).append(case)
    fixtures = [{"fixture": name, "made_by": cases[0]["fixture"]["source"], "sha256": cases[0]["fixture"]["sha256"],
                 "kernels": [case["subject"]["name"] for case in cases], "cases": len(cases),
                 "passed": sum(case["verdict"] == "PASS" for case in cases),
                 "compared": sum(case["checks"]["bits"]["compared"] for case in cases),
                 "mismatching": sum(case["checks"]["bits"]["mismatching"] for case in cases)}
                for name, cases in groups.items()]
    sums = {key: sum(fixture[key] for fixture in fixtures) for key in ("cases", "passed", "compared", "mismatching")}
    return {**made_of(records, "gaugeblock.results-verify/1"), **sums, "fixtures": fixtures}


def kernels(records):
    """The verdict on each kernel, and the beginning of the reason."""
    return {**made_of(records, "gaugeblock.results-kernels/1"),
            "kernels": [{"kernel": case["subject"]["name"], "verdict": case["verdict"],
                         "reason": case.get("reason", "").split("; first")[0].split(": ")[0]}
                        for record in records for case in record["cases"]]}


def timed(records):
    """Medians in place of samples."""
    rows = []
    for case in (case for record in records for case in record["cases"] if case.get("timing")):
        figures = {key: value["median"] if isinstance(value, dict) and "median" in value else value
                   for key, value in case["timing"].items()}
        rows.append({"kernel": case["subject"]["name"], "contract": case["contract"], "batch": case["batch"],
                     "verdict": case["verdict"], **figures})
    return {**made_of(records, "gaugeblock.results-bench/1"),
            "growth": [one for record in records for one in record["growth"]], "timed": rows}


def studied(record, paths):
    import h5py  # which the other tables do not need
    hashes = {}
    for path in paths:
        with h5py.File(path) as file:
            hashes[os.path.basename(path).removesuffix(".h5")] = file.attrs["content_sha256"].decode()
    return {**made_of([record], "gaugeblock.results-study/1"), "command": "gaugeblock study drift FIXTURE.h5 --kernel 'cuda/*'",
            "fixture": "gaugeblock import fixtures/data/tiny-qwen3-moe FIXTURE.h5 --capture "
                       "fixtures/data/tiny-qwen3-moe/capture.safetensors --format FORMAT", "content_sha256": hashes}


def main(mode, paths):
    if mode == "hashes":
        keep = []
        for path in paths:
            record = read(path)
            date, commit = source(record)
            keep.append({"command": " ".join(map(bare, record["command"])), "date": date, "commit": commit,
                         "device": record["cases"][0]["subject"]["device"], "fixtures": hashes(record)})
        print("[\n" + ",\n".join(map(json.dumps, keep)) + "\n]")
        return
    if mode in ("verify", "kernels", "bench", "study"):
        summary = (studied(read(paths[0]), paths[1:]) if mode == "study" else
                   {"verify": verified, "kernels": kernels, "bench": timed}[mode]([read(path) for path in paths]))
        print(json.dumps(summary, indent=1))
        return
    for path in paths:
        for cells in {"layers": layers, "outputs": outputs, "power": power}[mode](read(path)):
            print(row(os.path.basename(path).removesuffix(".json"), *cells))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

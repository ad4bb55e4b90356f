# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/results/README.md from the records that `gaugeblock verify` and `gaugeblock power` wrote.
Usage: records.py layers|outputs|power|hashes RECORD...
  layers   one row for each fixture and contract, over all kernels and batches
  outputs  one row for each case: files of outputs, which claim no order
  power    one row for each record: what every policy catches, and the smallest errors that the default one sees
  hashes   JSON: the hashes of every case's outputs, by fixture and batch, for tests/cli/test_results.py"""
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
        yield (fixture.removesuffix(".h5"), contract, len(cases),
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


def hashes(record):
    """{fixture's path: {"tokens", "batches": {batch: hash of outputs and intermediates of all layers}}}"""
    found = {}
    for case in record["cases"]:
        fixture = found.setdefault(case["fixture"]["path"], {"tokens": case["fixture"]["tokens"], "batches": {}})
        fixture["batches"][str(case["batch"])] = [
            layer[key] for layer in case["metrics"]["layers"] for key in ("output_sha256", "intermediate_sha256")]
    return found


def main(mode, paths):
    if mode == "hashes":
        keep = []
        for path in paths:
            record = read(path)
            date, commit = source(record)
            keep.append({"command": " ".join(record["command"]), "date": date, "commit": commit,
                         "device": record["cases"][0]["subject"]["device"], "fixtures": hashes(record)})
        print("[\n" + ",\n".join(map(json.dumps, keep)) + "\n]")
        return
    for path in paths:
        for cells in {"layers": layers, "outputs": outputs, "power": power}[mode](read(path)):
            print(row(os.path.basename(path), *cells))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

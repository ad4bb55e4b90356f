# SPDX-License-Identifier: Apache-2.0
"""gaugeblock report: one page that needs nothing else, with the figures of its results. With `browser`: headless
Chromium opens it at 1280 and 390 pixels without errors or horizontal scroll, and its tables sort."""
import csv
import glob
import hashlib
import html.parser
import json
import os
import re
import resource
import shutil
import subprocess
import sys

import program
from kept import expect_kept, steady
from program import CAPTURE, CHECKPOINT, SOURCE, expect, path, refused, run, small

BROWSER = sys.argv[1:] == ["browser"]
chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if BROWSER and not chromium:
    print("no Chromium here: skipped")
    sys.exit(77)

VOID = {"meta", "br"}


class Page(html.parser.HTMLParser):
    """Elements that are closed as they were opened; tables as lists of rows; words outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.words, self.tags = [], [], [], []
        self.feed(text)
        self.close()
        expect(not self.open, f"not closed: {self.open}")

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append({"caption": "", "rows": []})
        elif tag == "tr":
            self.tables[-1]["rows"].append([])
        elif tag in ("td", "th"):
            self.tables[-1]["rows"][-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        expect(self.open and self.open.pop() == tag, f"</{tag}> closes something else")

    def handle_data(self, data):
        if "caption" in self.open:
            self.tables[-1]["caption"] += data
        elif "td" in self.open or "th" in self.open:
            self.tables[-1]["rows"][-1][-1] += data
        elif not {"script", "style"} & set(self.open):
            self.words.append(data)


tiny = path("tiny.h5")
run("import", CHECKPOINT, tiny, "--format", "nvfp4", "--capture", CAPTURE, "--tokens", "16")
run("study", "drift", tiny, "-o", path("drift.h5"), "--csv", path("drift.csv"))
run("study", "drift", "--shape", "8,2,256,128", "--layers", "26", "--tokens", "4", "-o", path("deep.h5"))
run("verify", small(), "-o", path("record.json"))
with open(path("strange.json"), "w") as stream:
    json.dump({"schema": "gaugeblock<b>&", "verdict": "PASS", "t": "a\x01b\nc\td", "a": {"list": [{"k": "<i>", "n": 1.5}, {"m": {"x": None}}]}}, stream)
bench = os.path.join(SOURCE, "docs/results/2026-11-28-h200-bench-silu-mul-quantise.json")
ranks, = glob.glob(os.path.join(SOURCE, "docs/results/*-accuracy-ranks.json"))
page = path("report.html")
run("report", path("drift.h5"), path("deep.h5"), path("record.json"), bench, ranks, path("strange.json"), "-o", page,
    "--title", "<script>alert(1)</script> & more")
with open(page) as stream:
    text = stream.read()

if BROWSER:
    # A page around it, in whose frame it has the width of a screen; what it says of itself is what is measured.
    probe = """<!doctype html><iframe src="report.html" style="border:0;width:%dpx;height:900px"></iframe>
<pre id=o></pre><script>const f=document.querySelector('iframe'),said=[];
f.onload=()=>{const w=f.contentWindow,d=w.document,e=d.documentElement;
const wide=[...d.querySelectorAll('body *')].filter(n=>!n.closest('.scroll')&&!n.closest('svg')&&
n.getBoundingClientRect().right>e.clientWidth+1).map(n=>n.tagName);
const t=d.querySelector('table'),h=t.querySelectorAll('th')[1],v=()=>[...t.tBodies[0].rows].map(r=>parseFloat(r.cells[1].textContent));
h.firstChild.click();const up=v();h.firstChild.click();const down=v();
o.textContent=JSON.stringify({width:e.clientWidth,scroll:e.scrollWidth,wide,up,down,charts:d.querySelectorAll('svg').length,
font:Math.min(...[...d.querySelectorAll('figure svg')].map(s=>10*s.getBoundingClientRect().width/360))})}</script>"""
    for width in (1280, 390):
        with open(path("probe.html"), "w") as stream:
            stream.write(probe % width)
        done = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                               "--virtual-time-budget=5000", "--enable-logging=stderr", "--window-size=1400,1000",
                               "--user-data-dir=" + path(f"profile{width}"), "--dump-dom", "file://" + path("probe.html")],
                              capture_output=True, text=True, timeout=120)
        found = re.search(r'<pre id="o">(.*?)</pre>', done.stdout, re.S)
        expect(found and found[1], f"the page was not measured:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        said = json.loads(html.unescape(found[1]))
        expect(width - 20 <= said["width"] <= width and said["scroll"] == said["width"] and not said["wide"],  # a scroll bar
               f"{width}: {said}")
        expect(said["up"] == sorted(said["up"]) and said["down"] == said["up"][::-1] and len(said["up"]) > 2, str(said))
        expect(said["font"] >= 8.5 and said["charts"] > 10, f"{width}: letters of {said['font']} pixels")
        console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
        expect(not console, f"the console says: {console}")
    sys.exit(0)

expect(len(text) < 2 << 20, f"{len(text)} bytes")
parsed = Page(text)
expect(not re.search(r"https?://|@import|url\(", text), "something from a network")
for tag, attributes in parsed.tags:
    expect(not {"src", "href", "srcset"} & attributes.keys(), f"<{tag}> loads something: {attributes}")
expect("<script>alert" not in text and "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in text, "the title is escaped")
expect("<i>" not in text and "<b>&" not in text, "values are escaped")

# The page says what the results say: every figure of the first study's tables and charts is that of its CSV.
with open(path("drift.csv")) as stream:
    csv_rows = list(csv.DictReader(stream))
figures = {(r["mode"], r["truth"], r["path"], r["layer"], r["figure"]): r for r in csv_rows}
paths = list(dict.fromkeys(r["path"] for r in csv_rows))
rows = {(r["truth"], r["path"]): r for r in csv_rows
        if r["mode"] == "open_loop" and r["layer"] == "1" and r["figure"] == "relative_l2"}
tables = {table["caption"]: table["rows"] for table in parsed.tables[::-1]}


def shows(cell, key, *parts):
    """The numbers of a cell are those of the CSV, as far as their digits go."""
    for word, part in zip(re.findall(r"-?\d[\d.]*(?:e[-+]\d+)?", cell), parts or ("value",), strict=True):
        digits, _, power = word.partition("e")
        last = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
        expect(abs(float(word) - float(figures[key][part])) <= 0.501 * last, f"{key}: {cell}, not {figures[key]}")


def check_tables(truth):
    table = tables[f"Residual stream after layer 1 against float64 with the {truth} weights"]
    expect([row[0] for row in table[1:]] == paths, str(table))
    for row in table[1:]:
        of = "open_loop", truth, row[0], "1"
        shows(row[1], (*of, "relative_l2"))
        shows(row[2], (*of, "relative_l2"), "low", "high")
        for n, name in enumerate(("cosine_min", "sqnr_db", "max_abs", "max_bf16_ulp", "changed_tokens"), 5):
            shows(row[n], (*of, name))
        if row[0] != paths[0]:
            shows(row[4], ("layer", truth, row[0], "", "closeness"), "value", "low", "high")
            error, of_bf16 = (float(rows[truth, one]["value"]) for one in (row[0], paths[0]))
            expect(abs(float(row[3].split()[0]) * of_bf16 / error - 1) < 1e-3, f"{row[3]}: {error} over {of_bf16}")
    table = tables[f"By layer, against float64 with the {truth} weights"]
    expect([row[:2] for row in table[1:]] == [[name, layer] for name in paths for layer in "01"], str(table))
    for row in table[1:]:
        for n, name in ((2, "relative_l2"), (3, "injected"), (4, "carried"), (6, "cosine_min"), (7, "max_abs"),
                        (8, "changed_tokens")):
            shows(row[n], ("open_loop", truth, *row[:2], name))
        shows(row[5], ("layer", truth, *row[:2], "relative_l2"))


def check_charts():
    """Tips of the first study's charts: "path, layer: value", of ratios "path: value (low to high)"."""
    charts = {}
    for caption, body in re.findall(r"<figcaption>(.*?)</figcaption>(.*?)</figure>", text, re.S):
        charts.setdefault(caption, re.findall("<title>(.*?)</title>", body))
    for truth in ("original", "quantised"):
        what = f"float64 with the {truth} weights"
        tips = [(f"Drift: error of the residual stream against {what}", "relative_l2")]
        if truth == "original":
            tips.append((f"Injected by each layer, against {what}", "injected"))
        for caption, name in tips:
            points = [re.fullmatch(r"(.*), (\d+): (.*)", tip).groups() for tip in charts[caption]]
            expect([point[:2] for point in points] == [(one, layer) for one in paths for layer in "01"], str(points))
            for one, layer, value in points:
                shows(value, ("open_loop", truth, one, layer, name))
        ratios = [tip.split(": ") for tip in charts[
            f"Error of layer outputs over that of {paths[0]}, against {what}, each given the same bf16 input"]]
        expect([one for one, _ in ratios] == paths[1:], str(ratios))
        for one, value in ratios:
            shows(value, ("layer", truth, one, "", "closeness"), "value", "low", "high")
    changed = charts["Tokens whose experts changed, against float64 with the original weights"]
    for one, layer, value in (re.fullmatch(r"(.*), (\d+): (.*)", tip).groups() for tip in changed):
        count = float(figures["open_loop", "original", one, layer, "changed_tokens"]["value"])
        expect(abs(float(value) - 100 * count / 16) < 1e-3 * max(1, float(value)), f"{one}, layer {layer}: {value} %")


def check_ranks():
    """Charts of sums over ranks: every error of a random placement, beside that of one rank whose slots stay FP32."""
    with open(ranks) as stream:
        fixtures = json.load(stream)["fixtures"]
    keys = {"at the receiver": "receiver", "at the sender": "sender", "at the sender and its node": "node"}
    for fixture in fixtures:
        for figure, words in (("relative_l2_fp32", "FP32"), ("relative_l2_bf16", "bf16")):
            caption = f"{fixture['source']}: error of the output in {words}"
            found = [re.fullmatch(r"(.*), (\d+): (.*)", tip).groups()
                     for tip in re.findall("<title>(.*?)</title>", text.split(f"<figcaption>{caption}</figcaption>")[1].split("</figure>")[0])]
            wanted = {(case["accumulation"], case["ranks"]): case[figure] for case in fixture["cases"]
                      if case["placement"] == "random" or case["ranks"] == 1}
            expect(len(found) == len(wanted) * 4 // 3 and len(wanted) >= 21, f"{caption}: {len(found)} points")
            for name, count, value in found:
                of = wanted[keys[name], int(count)] if name in keys else fixture["one_rank_fp32_slots"][figure]
                expect(float(value) == float(f"{of:.4g}"), f"{caption}: {name}, {count} ranks: {value}, not {of}")


check_tables("original")
check_tables("quantised")
check_charts()
check_ranks()
words = " ".join("".join(parsed.words).split())
best = min((float(r["value"]), name) for (truth, name), r in rows.items() if truth == "quantised")
expect(f"Closest to float64 with the quantised weights: {best[1]} . Relative L2 error of its residual stream after the last layer: "
       f"{100 * best[0]:.3g} %"
       in words.replace(best[1] + ".", best[1] + " ."), words[:2000])
expect("of 16 tokens" in words and re.search(r"for 0 by bf16.fma32 +and \d+ by mxfp4.fma32", words), "changed experts")
expect("Verdict PASS" in words and any("cases" in caption for caption in tables), str(list(tables)))
with open(bench) as stream:
    first = json.load(stream)["shapes"][0]["kernels"][0]
expect(tables["shapes 0: kernels"][1][:2] == [first["kernel"], str(first["us"])], str(tables["shapes 0: kernels"]))
expect(text.count("<figure>") >= 16 and text.count("<title>") > 500, "charts")
shown = words + " ".join(cell for table in parsed.tables for row in table["rows"] for cell in row)
expect(not {"nan", "-nan", "inf", "(nan"} & set(re.split(r"[\s,]+", shown.lower())), "what is undefined is left out")
for tag, attributes in parsed.tags:
    for number in re.findall(r"-?[\d.]+", attributes.get("d", "")) if tag == "path" else ():
        expect(-20 <= float(number) <= 400, f"outside its chart: {attributes}")
expect(all(re.fullmatch(r"[MLHVZ\d. -]*", a.get("d", "")) for t, a in parsed.tags if t == "path"), "paths are numbers")

refused("report", path("drift.h5"))
refused("report", "-o", page)
refused("report", path("missing.h5"), "-o", page)
refused("report", path("drift.h5"), "-o", path("drift.h5"))
refused("report", tiny, "-o", page)  # HDF5, but no study
refused("report", path("drift.csv"), "-o", page)
for record in ({}, [], {"schema": 1}, {"schema": "other/1", "cases": []}):
    with open(path("other.json"), "w") as stream:
        json.dump(record, stream)
    refused("report", path("other.json"), "-o", page)

# Of a page of nothing but records, whose numbers are no machine's, each part.
def timed(name, operator, fixture, batch, beside, times):
    """A case of bench; beside: what it was timed beside, "read" or "copy"."""
    return {"subject": {"name": name, "operator": operator}, "fixture": {"path": fixture}, "batch": batch, "verdict": "PASS",
            "timing": {"bytes": 123456 * batch, "us": {"median": times[0]}, beside + "_us": {"median": times[1]}}}


for name, cases in {
        "batches": [timed(f"k/{k}", operator, "a.h5", batch, "read", (7.5 + 3 * k + 1.7 * batch, 2 + 0.6 * batch))
                    for operator in ("down", "layer") for k in range(3) for batch in (8, 1, 32)],
        "fixtures": [timed("k/d", "dispatch", f"{batch}.h5", batch, "copy", (31 + batch, 5 + batch / 3)) for batch in (2, 64, 9)]}.items():
    with open(path(name + ".json"), "w") as stream:
        json.dump({"schema": "gaugeblock.bench/1", "verdict": "PASS", "cases": cases}, stream)
run("report", bench, ranks, path("batches.json"), path("fixtures.json"), path("strange.json"), "-o", path("records.html"))
with open(path("records.html")) as stream:
    parts = re.split(r"(?=<(?:section|h[123]|figure|table)\b)", steady(stream.read()))
program.said.append("".join(f"{part[:60].splitlines()[0]} {hashlib.sha256(part.encode()).hexdigest()[:6]}\n" for part in parts))

expect_kept()

# No result stays open when it is drawn.
few = resource.RLIMIT_NOFILE, (24, 24)
run("report", *[path("record.json")] * 40, "-o", path("many.html"), preexec_fn=lambda: resource.setrlimit(*few))

"""lab/tools/papers_page.py: the figures on the page and in its charts equal those of the cells.

Runs the suite's command, which writes the description; the cells are synthetic.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab" / "tools"))

import papers_page  # noqa: E402
import pictures  # noqa: E402
import plots  # noqa: E402
import published  # noqa: E402
from page import Page, figure, percent, tokens  # noqa: E402
from suite import Suite  # noqa: E402

SEED = int(os.environ.get("LC_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
COMMAND = []  # of the suite
OTHERS = ("retroinfer", "infinigen", "pqcache")
AS_PUBLISHED = tuple(f"{system}, as published" for system in OTHERS)
PARTS = ("products", "attention", "retrieval", "transfer", "management", "rest")


def tables_of(text):
    """[[row, ...], ...] of a page, a row being a list of cells, without the line below the head."""
    tables, inside = [], False
    for line in text.splitlines():
        if line.startswith("|"):
            if not inside:
                tables.append([])
            if not line.startswith("| ---"):
                tables[-1].append(line[2:-2].split(" | "))
        inside = line.startswith("|")
    return tables


class PageTest(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(SEED)
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.addCleanup(plots.pyplot.close, "all")
        self.output = pathlib.Path(temporary.name)
        subprocess.run([*COMMAND, "--quick", "--time-limit", "0", "--accuracy-model",
                        str(ROOT / "models" / "litecache-demo-16m"), "--output", str(self.output)],
                       check=True, stdout=subprocess.DEVNULL)
        self.directory = self.output / "papers"
        self.description = json.loads((self.directory / "suite.json").read_text())
        self.files, self.results = {}, {}
        for experiment in self.description["experiments"]:
            for entry in experiment["cells"]:
                key = tuple(entry["cell"][part] for part in ("kind", "system", "shape", "batch", "context"))
                if key not in self.files:
                    self.files[key] = entry["file"]
                    self.results[key] = self.random_result(entry)
                    self.write(key)

    def random_result(self, entry):
        some = self.rng.uniform
        result = {"cell": entry["cell"], "layers": 4, "ms_per_step": some(1, 50), "tokens_per_s": some(10, 3000),
                  "kv_device_bytes": some(1e8, 1e10), "hit_ratio": some(0, 1), "link_bytes_per_step": some(1e6, 1e9),
                  "breakdown": {"marks": 9, **{f"{part}_ms": some(0.1, 3) for part in PARTS}}, "average": some(0, 100),
                  "moved_per_token": some(1e5, 1e8), "program": "a program", "machine": "a GPU, 4 threads"}
        if entry["forced"]:
            result["forced"] = self.description["forced"]
        return result

    def write(self, key):
        (self.directory / "cells" / self.files[key]).write_text(json.dumps(self.results[key]))

    def page(self):
        page = Page(self.output / "papers.md", self.directory)
        papers_page.write_page(Suite(self.directory), page, "2000-01-01")
        return (self.output / "papers.md").read_text()

    def table(self, heading, index=0):
        text = self.page()
        return tables_of(text[text.index(f"## {heading}"):])[index]

    def decode(self, system, context, batch=1):
        return self.results["decode", system, self.description["grid"]["shapes"][0], batch, context]

    def test_latency(self):
        lengths = self.description["grid"]["lengths"]
        head, *rows = self.table("Step latency")
        self.assertEqual(head, ["system", *map(tokens, lengths)])
        self.assertGreater(len(rows), 10)
        for system, *cells in rows:
            for length, cell in zip(lengths, cells, strict=True):
                ms, full = (self.decode(name, length)["ms_per_step"] for name in (system, "full"))
                self.assertEqual(cell, f"{figure(ms)} ({ms / full:.2f}x)")

    def test_overhead(self):
        lengths = self.description["grid"]["lengths"]
        _, *rows, last = self.table("Cache overhead")
        self.assertEqual([row[0] for row in rows], ["litecache", *OTHERS, *AS_PUBLISHED])
        for system, *cells in rows:
            for length, cell in zip(lengths, cells, strict=True):
                ms = {part: self.decode(system, length)["breakdown"][f"{part}_ms"] for part in PARTS}
                waits = ms.pop("transfer") + ms.pop("management")
                self.assertEqual(cell, percent(waits / sum(ms.values())))
        self.assertEqual(last, ["published", "51% / 32%", "68% / 41%"])

    def test_breakdown(self):
        for launch in (False, True):  # cells of earlier versions count launches in the rest
            longest = max(self.description["grid"]["lengths"])
            shown = PARTS + (("launch",) if launch else ())
            if launch:
                for key, result in self.results.items():
                    result["breakdown"]["launch_ms"] = self.rng.uniform(0.1, 3)
                    self.write(key)
            head, *rows = self.table("Where a layer")
            self.assertEqual(head[1:-3], list(shown))

            def layer(system):
                return sum(self.decode(system, longest)["breakdown"][f"{part}_ms"] for part in shown) * 1e3 / 4

            for system, *cells in rows:
                result = self.decode(system, longest)
                self.assertEqual(cells, [
                    *(figure(result["breakdown"][f"{part}_ms"] * 1e3 / 4) for part in shown), figure(layer(system)),
                    f"{layer(system) / layer('litecache'):.2f}x", figure(result["link_bytes_per_step"] / 1e6)])

    def test_throughput_and_margins(self):
        grid = self.description["grid"]
        shape = grid["shapes"][0]
        points = [(1, length) for length in grid["lengths"]] + [(batch, grid["batch_context"]) for batch in grid["batches"][shape]]

        def rates(systems, point):
            return [self.decode(system, point[1], point[0])["tokens_per_s"] for system in systems]

        systems = ("full", "litecache", *OTHERS, "streaming")
        head, *rows = self.table("Decode throughput over")
        self.assertEqual(head[1:-2], list(systems))
        for point, (name, *cells) in zip(points, rows, strict=True):
            best = max(rates(OTHERS, point))
            self.assertEqual(name, f"{point[0]} x {tokens(point[1])}")
            self.assertEqual(cells, [*map(figure, rates(systems, point)), f"{rates(['litecache'], point)[0] / best:.2f}x",
                                     f"{rates(['streaming'], point)[0] / best:.2f}x"])
        forms = (*AS_PUBLISHED, "retroinfer, 1.8%", "infinigen, 20%")
        head, *rows = self.table("Decode throughput over", 1)
        self.assertEqual(head[1:-1], list(forms))
        for point, (_, *cells) in zip(points, rows, strict=True):
            self.assertEqual(cells, [*map(figure, rates(forms, point)),
                                     f"{rates(['litecache'], point)[0] / max(rates(AS_PUBLISHED, point)):.2f}x"])

        def span(over, below):
            values = [rates([over], point)[0] / max(rates(below, point)) for point in points]
            return f"{min(values):.2f}x to {max(values):.2f}x"

        self.assertEqual(tables_of(self.page())[0][1],
                         [shape, span("litecache", OTHERS), span("streaming", OTHERS), span("litecache", AS_PUBLISHED),
                          "2.08x to 3.24x", span("litecache", ["full"])])

    def test_prefill_cache_link_and_ablation(self):
        grid = self.description["grid"]
        shape, length = grid["shapes"][0], grid["prefill_lengths"][0]
        head, row = self.table("Prefill")
        rates = [self.results["prefill", system, shape, 1, length]["tokens_per_s"] for system in head[1:]]
        self.assertEqual(row[1:], [f"{figure(rate)} ({percent(rate / rates[0])})" for rate in rates])
        for system, *cells in self.table("Device memory")[1:4]:
            self.assertEqual(cells, [figure(self.decode(system, n)["kv_device_bytes"] / 1e9) for n in grid["lengths"]])
        for index, points in enumerate(([(1, n) for n in grid["lengths"]], [(4, grid["batch_context"])])):
            for system, *cells in self.table("Hit ratios", index)[1:4]:
                self.assertEqual(cells, [figure(self.decode(system, n, batch)["hit_ratio"] * 100) for batch, n in points])
        for engine, *cells in self.table("Link")[1:]:
            results = [self.decode(f"link: {engine}", n) for n in grid["link_lengths"]]
            self.assertEqual(cells, [figure(result["link_bytes_per_step"] / result["breakdown"]["transfer_ms"] / 1e6)
                                     for result in results])
        before = None
        for step, ms, hits, taken in self.table("Ablation")[1:]:
            result = self.decode(f"ablation: {step}", grid["batch_context"], 4)
            self.assertEqual((ms, hits), (figure(result["ms_per_step"]), percent(result["hit_ratio"])))
            self.assertEqual(taken, "-" if before is None else percent(1 - result["ms_per_step"] / before))
            before = result["ms_per_step"]

    def test_accuracy(self):
        grid = self.description["grid"]

        def result(system):
            return self.results["accuracy", system, grid["accuracy_model"], grid["accuracy_count"], grid["accuracy_lengths"][0]]

        rows = self.table("Accuracy")[1:]
        self.assertEqual(len(rows), 15)
        for system, _, score, to_full, hits, moved in rows:
            self.assertEqual(score, f"{result(system)['average']:.1f}")
            self.assertEqual(to_full, f"{result(system)['average'] - result('full')['average']:+.1f}")
            self.assertEqual((hits, moved), (percent(result(system)["hit_ratio"]), figure(result(system)["moved_per_token"] / 2**20)))

    def test_what_has_no_figure_says_why(self):
        self.assertNotIn("Without a figure", self.page())
        shape = self.description["grid"]["shapes"][0]
        for batch in (1, 4):
            key = ("decode", "pqcache", shape, batch, 8192)
            self.results[key] = {"cell": self.results[key]["cell"], "skipped": "too large", "forced": self.description["forced"]}
            self.write(key)
        # With other settings, and with another trace.
        for system, change in (("full", {"cell": {}}), ("litecache", {"forced": "another text"})):
            key = ("decode", system, shape, 4, 8192)
            self.results[key].update(change)
            self.write(key)
        text = self.page()
        self.assertIn("\n- pqcache at 8K, 4 x 8K: too large\n", text)
        self.assertIn("\n- full at 4 x 8K; litecache at 4 x 8K: not measured\n", text)

    def test_notes_machine_and_pictures(self):
        (self.directory / "notes.md").write_text("What there is to say.\n")
        (self.directory / "machine.json").write_text(json.dumps({"machine": "a GPU", "rates": "memory 3 GB/s"}))
        text = self.page()
        self.assertIn("What there is to say.\n", text)
        self.assertIn("Measured on a GPU; memory 3 GB/s, page of 2000-01-01. a program: ", text)
        shown = [line.split("](")[1][:-1] for line in text.splitlines() if line.startswith("![")]
        self.assertGreaterEqual(len(shown), 6)
        for name in shown:
            self.assertIn("</svg>", (self.output / name).read_text())


class PicturesTest(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(SEED)
        self.addCleanup(plots.pyplot.close, "all")

    def test_bars_are_as_long_as_their_values(self):
        parts = ("p", "q", "r")
        rows = {name: [self.rng.uniform(10, 20) for _ in parts] for name in "abcde"}
        boxes = pictures.bars("title", "x", parts, rows).axes[0].patches
        self.assertEqual([round(box.get_width(), 9) for box in boxes],
                         [round(rows[name][p], 9) for p in range(3) for name in rows])
        for i, box in enumerate(boxes[5:]):
            self.assertAlmostEqual(box.get_x(), boxes[i].get_x() + boxes[i].get_width())
        # A value that dwarfs the others is cut and labelled.
        rows["b"] = [40, 5000, 60]
        axes = pictures.bars("title", "x", parts, rows).axes[0]
        longest = sum(box.get_width() for box in axes.patches[1::5])
        self.assertAlmostEqual(longest, 4 * sorted(map(sum, rows.values()))[2])
        self.assertIn("5100", [text.get_text() for text in axes.texts])
        self.assertIsNone(pictures.bars("title", "x", ("p",), {"a": [0]}))

    def test_lines_have_their_points_and_forms_share_a_colour(self):
        curves = {"one": [(1, 5), (2, 6)], "two": [(1, 7), (2, 9)], "one, otherwise": [(1, 3), (2, 4)], "nothing": []}
        lines = pictures.lines("t", "x", "y", {1: "1", 2: "2"}, curves).axes[0].lines
        self.assertEqual({line.get_label(): [tuple(point) for point in line.get_xydata().tolist()] for line in lines},
                         {name: points for name, points in curves.items() if points})
        colours = {line.get_label(): line.get_color() for line in lines}
        self.assertEqual(colours["one"], colours["one, otherwise"])
        self.assertNotEqual(colours["one"], colours["two"])
        self.assertEqual(len({str(line._dash_pattern) for line in lines if line.get_label().startswith("one")}), 2)
        self.assertIsNone(pictures.lines("t", "x", "y", {1: "1"}, {"nothing": []}))

    def test_published_figures_are_at_their_places(self):
        row = ("name", 4, (1.5, None, 3))
        self.assertEqual([published.at(row, place) for place in (2, 4, 6, 8, 16, 32)], ["-", "1.5", "-", "-", "3", "-"])


if __name__ == "__main__":
    COMMAND = sys.argv[1:]
    print(f"LC_TEST_SEED={SEED}")
    unittest.main(argv=sys.argv[:1])

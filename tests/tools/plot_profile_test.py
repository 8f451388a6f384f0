"""tools/plot_profile.py: the charts show the given figures."""

import os
import pathlib
import random
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import plot_profile  # noqa: E402
import plots  # noqa: E402

SEED = int(os.environ.get("LC_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
LAYERS, Q_HEADS, KV_HEADS, POINTS, STEPS = 3, 4, 2, 5, 6


def random_data(rng):
    def many(count, low=0.0):
        return [round(rng.uniform(low, 1), 4) for _ in range(count)]

    heads = LAYERS * KV_HEADS
    curves = {"threshold": sorted(many(POINTS, -1)), "kept": many(heads * POINTS), "hits": many(heads * POINTS)}
    return {"layers": LAYERS, "q_heads": Q_HEADS, "kv_heads": KV_HEADS, "keep": 0.975,
            "importance": many(LAYERS * Q_HEADS), "thresholds": many(heads, -1), "hits": many(heads), "curves": curves,
            "similarity_maps": [{"layer": 1, "q_head": h, "steps": STEPS, "cosine": many(STEPS * STEPS, -1)} for h in range(2)],
            "overlap": [[rng.randrange(LAYERS), *many(2, -1)] for _ in range(40)]}


class PlotProfileTest(unittest.TestCase):
    def setUp(self):
        self.data = random_data(random.Random(SEED))
        self.figures = dict(plot_profile.figures(self.data))

    def tearDown(self):
        plots.pyplot.close("all")

    def test_maps_show_the_values_of_the_heads(self):
        for name, heads in (("importance", Q_HEADS), ("thresholds", KV_HEADS), ("hits", KV_HEADS)):
            axes = self.figures[name].axes[0]
            shown = axes.images[0].get_array().tolist()
            self.assertEqual([value for row in shown for value in row], self.data[name])
            self.assertEqual(len(shown[0]), heads)
            self.assertEqual([text.get_text() for text in axes.texts], [f"{value:.2f}" for value in self.data[name]])
        self.assertIn("97.5% of the mass", self.figures["thresholds"].axes[0].get_title())

    def test_curves_are_the_means_of_the_heads(self):
        lines = self.figures["curves"].axes[0].lines
        self.assertEqual(len(lines), LAYERS)
        for layer, line in enumerate(lines):
            for g, (x, y) in enumerate(line.get_xydata()):
                at = [(layer * KV_HEADS + head) * POINTS + g for head in range(KV_HEADS)]
                self.assertAlmostEqual(x, sum(self.data["curves"]["hits"][i] for i in at) / KV_HEADS)
                self.assertAlmostEqual(y, sum(self.data["curves"]["kept"][i] for i in at) / KV_HEADS)

    def test_points_and_cosines_are_all_there(self):
        points = [[layer, *point] for layer, dots in enumerate(self.figures["overlap"].axes[0].collections)
                  for point in dots.get_offsets().tolist()]
        self.assertEqual(sorted(points), sorted(self.data["overlap"]))
        for heat, axes in zip(self.data["similarity_maps"], self.figures["similarity"].axes):
            shown = axes.images[0].get_array()
            self.assertEqual([value for row in shown.tolist() for value in row], heat["cosine"])
            self.assertLessEqual(axes.images[0].norm.vmin, shown.min())

    def test_files_are_pictures_and_the_same_for_the_same_figures(self):
        with tempfile.TemporaryDirectory() as directory:
            files = []
            for figures in (self.figures, dict(plot_profile.figures(self.data))):
                for name, figure in figures.items():
                    plots.save(figure, pathlib.Path(directory) / "new" / f"{name}.svg")
                files.append({path.name: path.read_text() for path in pathlib.Path(directory, "new").iterdir()})
            self.assertEqual(*files)
            self.assertEqual(len(files[0]), 6)
            for text in files[0].values():
                self.assertTrue(xml.etree.ElementTree.fromstring(text).tag.endswith("svg"))
                self.assertNotIn("nan", text.lower())

    def test_without_maps_the_others_are_drawn(self):
        self.data["similarity_maps"] = []
        self.assertNotIn("similarity", dict(plot_profile.figures(self.data)))

    def test_without_importance_the_others_are_drawn(self):
        self.data["importance"] = []
        self.assertEqual(set(self.figures) - set(dict(plot_profile.figures(self.data))), {"importance"})


if __name__ == "__main__":
    print(f"LC_TEST_SEED={SEED}")
    unittest.main()

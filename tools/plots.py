"""The style of the tools' charts, and their output: SVG with text as text, and the same bytes for the same data."""

import pathlib

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

pyplot.rcParams.update({
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "grid.color": "#e4e4e4",
    "svg.fonttype": "none",
    "svg.hashsalt": "litecache",
})

# Okabe and Ito's colours, which are distinguishable without colour vision, and further ones.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999", "#666633", "#882255",
           "#332288", "#b8b000")


def save(figure, path):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)

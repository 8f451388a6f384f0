#!/usr/bin/env python3
"""Draws the output of `litecache profile --plots FILE`: properties of a model's queries and heads.

Needs tools/requirements.txt. Writes into the directory:
  similarity.svg   cosines between the queries of all pairs of decode steps, for some heads
  overlap.svg      similarity of two steps' queries against the share of top rows that they have in common
  curves.svg       attention mass kept against hit ratio as the threshold moves, one line per layer
  importance.svg   each query head's importance
  thresholds.svg   each KV head's fitted threshold
  hits.svg         the hit ratio that the threshold promises
"""

import argparse
import json
import math
import pathlib

import plots
from plots import pyplot


def layer_colours(layers):
    # Excludes the end of the scale: yellow on white is hard to see.
    scale = pyplot.get_cmap("viridis")
    return [scale(0.88 * layer / max(layers - 1, 1)) for layer in range(layers)]


def layer_legend(axes, handles):
    step = (len(handles) + 15) // 16  # at most 16 labels
    axes.legend(handles[::step], [f"layer {layer}" for layer in range(0, len(handles), step)], loc="center left",
                bbox_to_anchor=(1.02, 0.5), frameon=False)


def similarity(data):
    maps = data["similarity_maps"]
    if not maps:
        return None
    columns = min(3, len(maps))
    rows = math.ceil(len(maps) / columns)
    low = math.floor(10 * min(min(heat["cosine"]) for heat in maps)) / 10
    figure, axes = pyplot.subplots(rows, columns, figsize=(3.2 * columns + 0.8, 3.2 * rows + 0.4), squeeze=False)
    image = None
    for i, place in enumerate(axes.flat):
        place.grid(False)
        if i >= len(maps):
            place.axis("off")
            continue
        steps, cosine = maps[i]["steps"], maps[i]["cosine"]
        image = place.imshow([cosine[row * steps:(row + 1) * steps] for row in range(steps)], vmin=low, vmax=1,
                             interpolation="nearest")
        place.set_title(f"layer {maps[i]['layer']}, query head {maps[i]['q_head']}")
    figure.colorbar(image, ax=axes)
    figure.suptitle("Cosine of the queries of two decode steps")
    return figure


def overlap(data):
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    handles = []
    for layer, colour in enumerate(layer_colours(data["layers"])):
        pairs = [(x, y) for at, x, y in data["overlap"] if at == layer]
        handles.append(axes.scatter([x for x, _ in pairs], [y for _, y in pairs], s=8, color=colour))
    layer_legend(axes, handles)
    axes.set(title="Steps with similar queries select the same rows", xlabel="similarity of two steps' queries",
             ylabel="share of the top rows in common", ylim=(-0.02, 1.02))
    return figure


def layer_curve(data, layer):
    """Hit ratio and mass kept at each threshold, means over the layer's KV heads."""
    grid, heads = len(data["curves"]["threshold"]), data["kv_heads"]

    def mean(values):
        first = layer * heads * grid
        return [sum(values[first + head * grid + g] for head in range(heads)) / heads for g in range(grid)]

    return mean(data["curves"]["hits"]), mean(data["curves"]["kept"])


def curves(data):
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    handles = [axes.plot(*layer_curve(data, layer), color=colour)[0]
               for layer, colour in enumerate(layer_colours(data["layers"]))]
    layer_legend(axes, handles)
    axes.set(title="What reuse costs: the mean of each layer's heads as the threshold falls", xlabel="hit ratio",
             ylabel="attention mass kept", xlim=(0, 1))
    return figure


def head_map(title, columns, values, layers, low, high):
    """values [layers][heads]; the first layer is at the bottom, as in the papers."""
    heads = len(values) // layers
    figure, axes = pyplot.subplots(figsize=(max(4.5, 0.45 * heads + 2), max(2.5, 0.32 * layers + 1.2)))
    rows = [values[layer * heads:(layer + 1) * heads] for layer in range(layers)]
    image = axes.imshow(rows, vmin=low, vmax=high, origin="lower", aspect="auto")
    axes.grid(False)
    if heads <= 16:
        for layer, row in enumerate(rows):
            for head, value in enumerate(row):
                axes.text(head, layer, f"{value:.2f}", ha="center", va="center", fontsize=7,
                          color="white" if value < low + 0.6 * (high - low) else "black")
    figure.colorbar(image, ax=axes)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    axes.set(title=title, xlabel=columns, ylabel="layer")
    return figure


def figures(data):
    """[(name, figure)] of all figures for which there is data."""
    layers, kept = data["layers"], f"{100 * data['keep']:.4g}% of the mass"
    thresholds = data["thresholds"]
    drawn = [
        ("similarity", similarity(data)),
        ("overlap", overlap(data)),
        ("curves", curves(data)),
        ("importance", head_map("Importance of the query heads", "query head", data["importance"], layers, 0, 1)
         if data["importance"] else None),
        ("thresholds", head_map(f"Threshold that keeps {kept}", "KV head", thresholds, layers, min(0, *thresholds), 1)),
        ("hits", head_map(f"Hit ratio at {kept}", "KV head", data["hits"], layers, 0, 1)),
    ]
    return [(name, figure) for name, figure in drawn if figure is not None]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="what litecache profile --plots wrote")
    parser.add_argument("directory", type=pathlib.Path, help="directory of the pictures; made where missing")
    options = parser.parse_args()
    for name, figure in figures(json.loads(options.data.read_text())):
        plots.save(figure, options.directory / f"{name}.svg")


if __name__ == "__main__":
    main()

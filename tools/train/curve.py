"""Draws the loss of one or several trainings in sequence. Needs tools/requirements.txt."""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import plots  # noqa: E402
from plots import pyplot  # noqa: E402

SMOOTH = 8  # log lines averaged into one point


def read(paths):
    """(millions of tokens trained on, loss on code, length of the stage) of each line of the logs."""
    rows, before = [], 0
    for path in paths:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        rows += [((before + line["tokens"]) / 1e6, line["code"], line["length"]) for line in lines]
        before += lines[-1]["tokens"]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="+", type=pathlib.Path, help="log.jsonl files, in order")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="SVG file")
    args = parser.parse_args()
    rows = read(args.logs)
    figure, axes = pyplot.subplots(figsize=(8, 3.4))
    points = [rows[i:i + SMOOTH] for i in range(0, len(rows), SMOOTH)]
    axes.plot([point[-1][0] for point in points], [sum(row[1] for row in point) / len(point) for point in points],
              color=plots.COLOURS[0])
    for (tokens, _, length), previous in zip(rows, [(0, 0, 0), *rows]):
        if length != previous[2]:
            axes.axvline(tokens, color="#bbbbbb", linestyle="--", linewidth=1)
            axes.text(tokens, 0.97, f" {length // 1024}K", color="#666666", va="top", transform=axes.get_xaxis_transform())
    axes.set(xlabel="million tokens trained on, by the length of the stage", ylabel="loss on code, nats a token", ylim=(0.8, 3))
    plots.save(figure, args.output)


if __name__ == "__main__":
    main()

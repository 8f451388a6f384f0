"""Draws the loss of one or several trainings, one after another, as a small SVG."""

import argparse
import json
import math
import pathlib

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 300, 48, 16, 40
LOW, HIGH = 0.8, 3.0
SMOOTH = 8  # log lines averaged into one point


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="+", type=pathlib.Path, help="log.jsonl files, in order")
    parser.add_argument("--output", required=True, type=pathlib.Path)
    args = parser.parse_args()
    rows, before = [], 0
    for path in args.logs:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        rows += [(before + r["tokens"], r["code"], r["length"]) for r in lines]
        before += lines[-1]["tokens"]
    x = lambda tokens: LEFT + (WIDTH - LEFT - 16) * tokens / before
    y = lambda loss: TOP + (HEIGHT - TOP - BOTTOM) * (HIGH - max(LOW, min(HIGH, loss))) / (HIGH - LOW)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for step in range(math.ceil(LOW * 5), int(HIGH * 5) + 1, 2):
        loss = step / 5
        out.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - 16}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.1f}</text>')
    for millions in range(0, int(before / 1e6) + 1, 500):
        out.append(f'<text x="{x(millions * 1e6):.1f}" y="{HEIGHT - 22}" text-anchor="middle">{millions}M</text>')
    for (tokens, _, length), previous in zip(rows, [(0, 0, 0), *rows]):
        if length != previous[2]:
            out.append(f'<path d="M{x(tokens):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#bbb" stroke-dasharray="3 3"/>'
                       f'<text x="{x(tokens) + 3:.1f}" y="{TOP + 10}" fill="#666">{length // 1024}K</text>')
    points = [rows[i:i + SMOOTH] for i in range(0, len(rows), SMOOTH)]
    line = " ".join(f"{x(p[-1][0]):.1f},{y(sum(r[1] for r in p) / len(p)):.1f}" for p in points)
    out.append(f'<polyline points="{line}" fill="none" stroke="#1667b7" stroke-width="1.5"/>')
    out.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">tokens trained on; '
               "loss on code (nats a token) by the length of the stage</text></svg>")
    args.output.write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()

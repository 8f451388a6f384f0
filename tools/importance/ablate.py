"""Passkey accuracy with some heads streaming: the least important, the most important, random ones.

If the importance means something, the least important heads can stream without harm and a few of the
most important ones cannot. Prints a Markdown table and writes a JSON.
"""

import argparse
import pathlib
import random
import sys

import torch

import common


def orders(alpha, draws: int, seed: int) -> dict:
    """Flat head numbers in the order in which they are given to streaming attention."""
    rng = random.Random(f"order {seed}")
    least = sorted(range(alpha.numel()), key=lambda i: alpha.flatten()[i].item())
    named = {"least": [least], "most": [least[::-1]], "random": []}
    for _ in range(draws):
        named["random"].append(rng.sample(least, len(least)))
    return named


@torch.no_grad()
def measure(model, mix, documents, streaming: list[int]) -> float:
    """Percent of passkeys found while these heads stream."""
    mix.alpha.fill_(1)
    mix.alpha.view(-1)[streaming] = 0
    mix.mixing = True
    marks = [m for d in documents for m in common.right_answers(model, d, common.hidden_states(model, d))]
    return 100 * sum(marks) / len(marks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    common.add_arguments(parser)
    parser.add_argument("--importance", required=True, type=pathlib.Path, help="the TSV of train.py")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384, 32000])
    parser.add_argument("--documents", type=int, default=6, help="of each length")
    parser.add_argument("--windows", nargs="+", default=["4:64", "128:256"], help="sink:recent")
    parser.add_argument("--counts", type=int, nargs="+", help="streaming heads (every eighth part of them where absent)")
    parser.add_argument("--draws", type=int, default=3, help="of random heads")
    args = parser.parse_args()
    alpha = common.read_table(args.importance)
    model, mix = common.load(args, 4, 64)
    if alpha.shape != mix.alpha.shape:
        parser.error(f"{args.importance} is {tuple(alpha.shape)}, the model's layers and query heads are {tuple(mix.alpha.shape)}")
    counts = args.counts or sorted({round(alpha.numel() * i / 8) for i in range(9)})
    maker = common.make_maker(args)
    rows = []
    for length in args.lengths:
        documents = list(common.documents(maker, [length] * args.documents, args.seed + 2_000_000))
        for window in args.windows:
            mix.sink, mix.recent = map(int, window.split(":"))
            for name, lists in orders(alpha, args.draws, args.seed).items():
                found = [sum(measure(model, mix, documents, order[:n]) for order in lists) / len(lists) for n in counts]
                rows.append({"length": length, "window": window, "heads": name, "found": [round(f, 1) for f in found]})
                print(rows[-1], file=sys.stderr, flush=True)
    print(f"| length | sink:recent | streaming heads | {' | '.join(map(str, counts))} |")
    print("| --- " * (3 + len(counts)) + "|")
    for row in rows:
        print(f"| {row['length']} | {row['window']} | {row['heads']} | {' | '.join(f'{f:.0f}' for f in row['found'])} |")
    if args.output:
        common.write_json(args.output, {"importance": args.importance.name, "counts": counts, "documents": args.documents,
                                        "draws": args.draws, "rows": rows})


if __name__ == "__main__":
    main()

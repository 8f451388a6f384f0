"""Passkey accuracy and perplexity while some heads stream: the least important, the most important, or random ones.

If the importance is meaningful, the least important heads can stream without harm and a few of the
most important ones cannot. The perplexity is that of the haystack's last 2,048 tokens. Prints Markdown
tables and writes a JSON.
"""

import argparse
import math
import pathlib
import random
import sys

import torch

import common

PERPLEXITY_TOKENS = 2048


def orders(alpha, draws: int, seed: int) -> dict:
    """Flat head numbers in the order in which they are switched to streaming attention."""
    rng = random.Random(f"order {seed}")
    least = sorted(range(alpha.numel()), key=lambda i: alpha.flatten()[i].item())
    named = {"least": [least], "most": [least[::-1]], "random": []}
    for _ in range(draws):
        named["random"].append(rng.sample(range(alpha.numel()), alpha.numel()))
    return {name: lists for name, lists in named.items() if lists}


def haystack_loss(model, document, hidden) -> float:
    """Mean negative log likelihood of the last tokens before the questions."""
    begin = max(1, document.context - PERPLEXITY_TOKENS)
    logits = model.lm_head(hidden[begin - 1:document.context - 1]).float()
    tokens = torch.tensor(document.ids[begin:document.context], device=hidden.device)
    return torch.nn.functional.cross_entropy(logits, tokens).item()


@torch.no_grad()
def measure(model, mix, documents, streaming: list[int]) -> tuple[float, float]:
    """(percent of passkeys found, haystack loss) while these heads stream."""
    mix.alpha.fill_(1)
    mix.alpha.view(-1)[streaming] = 0
    mix.mixing = True
    marks, losses = [], []
    for document in documents:
        hidden = common.hidden_states(model, document)
        marks += common.right_answers(model, document, hidden)
        losses.append(haystack_loss(model, document, hidden))
    return 100 * sum(marks) / len(marks), sum(losses) / len(losses)


def print_table(title: str, counts, rows, field: str, digits: int):
    print(f"{title}\n\n| length | sink:recent | streaming heads | {' | '.join(map(str, counts))} |")
    print("| --- " * (3 + len(counts)) + "|")
    for row in rows:
        figures = " | ".join(f"{f:.{digits}f}" for f in row[field])
        print(f"| {row['length']} | {row['window']} | {row['heads']} | {figures} |")
    print()


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
                each = [[measure(model, mix, documents, order[:n]) for order in lists] for n in counts]
                mean = [[sum(x) / len(x) for x in zip(*results)] for results in each]
                rows.append({"length": length, "window": window, "heads": name, "found": [round(f, 1) for f, _ in mean],
                             "perplexity": [round(math.exp(loss), 3) for _, loss in mean]})
                print(rows[-1], file=sys.stderr, flush=True)
    print_table("Passkeys found, percent", counts, rows, "found", 0)
    print_table("Perplexity of the haystack", counts, rows, "perplexity", 2)
    if args.output:
        common.write_json(args.output, {"importance": args.importance.name, "counts": counts, "documents": args.documents,
                                        "draws": args.draws, "rows": rows})


if __name__ == "__main__":
    main()

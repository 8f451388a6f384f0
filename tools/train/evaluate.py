"""Scores a model: retrieval tasks by greedy generation and string match, and perplexity of held-out
code by context length and by position."""

import argparse
import json
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import export
import recipe
from generate import greedy
from model import Llama, Shape, rope_tables

STOP = {1, 3}
CACHE_TOKENS = 2_500_000  # for one batch of prompts


def score(prediction: str, outputs: list[str]) -> float:
    """The share of the references that the prediction contains (RULER's string_match_all)."""
    return sum(o.lower() in prediction.lower() for o in outputs) / len(outputs)


def retrieval_scores(model, tokenizer, folder: pathlib.Path, lengths, tasks, device, dtype, count):
    scores, samples = {}, []
    for length in lengths:
        for task in tasks:
            path = folder / f"prompts_{task}_{length}.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()][:count] if path.exists() else []
            if not lines:
                continue
            begin = time.time()
            prompts = [tokenizer.encode(line["input"]).ids for line in lines]
            size = max(1, CACHE_TOKENS // length)
            answers = []
            for first in range(0, len(prompts), size):
                answers += greedy(model, prompts[first:first + size], lines[0]["max_new_tokens"], STOP, device, dtype)
            texts = [tokenizer.decode(ids) for ids in answers]
            each = [score(text, line["outputs"]) for text, line in zip(texts, lines)]
            scores.setdefault(task, {})[length] = round(100 * sum(each) / len(each), 1)
            wrong = [i for i, s in enumerate(each) if s < 1][:2] or [0]
            samples += [{"task": task, "length": length, "outputs": lines[i]["outputs"], "prediction": texts[i],
                         "score": each[i]} for i in wrong]
            print(f"{task:16} {length:6} {scores[task][length]:6.1f}  ({len(lines)} prompts, {time.time() - begin:.1f} s)", flush=True)
    return scores, samples


@torch.no_grad()
def token_losses(model, ids, tables, device, dtype, last=None):
    """NLL of every token of ids [length] except the first (or of the last `last`), float32 on the CPU."""
    with torch.autocast(device.type, dtype):
        hidden = model.hidden(ids[None, :-1], tables[0][:len(ids) - 1], tables[1][:len(ids) - 1])[0]
    targets = ids[1:]
    if last:
        hidden, targets = hidden[-last:], targets[-last:]
    return F.cross_entropy(model.logits(hidden.to(model.embed_tokens.weight.dtype)).float(), targets, reduction="none").cpu()


def perplexities(model, path: pathlib.Path, bos: int, device, dtype, windows: int, longest: int):
    """Perplexity of the same last 512 tokens given 1K, 2K, ... of context, and by position in the window."""
    stream = torch.from_numpy(np.load(path).astype(np.int64)).to(device)
    tables = rope_tables(model.shape, longest, device)
    contexts = [c for c in (512, *recipe.EVALUATION_LENGTHS) if c <= longest]
    starts = np.linspace(0, len(stream) - longest, windows).astype(int)
    by_context, by_position = {c: [] for c in contexts}, []
    for start in starts:
        window = stream[start:start + longest - 1]
        head = torch.tensor([bos], device=device)
        by_position.append(token_losses(model, torch.cat([head, window]), tables, device, dtype))
        for context in contexts:
            part = torch.cat([head, window[-(context - 1):]])
            by_context[context].append(token_losses(model, part, tables, device, dtype, last=min(512, context - 1)))
    every = torch.stack(by_position).mean(0)
    edges = [e for e in (0, 256, *recipe.EVALUATION_LENGTHS) if e < longest] + [longest]
    position = {f"{a}-{b}": round(math.exp(every[a:b].mean()), 4) for a, b in zip(edges, edges[1:])}
    return ({c: round(math.exp(torch.stack(v).mean()), 4) for c, v in by_context.items()}, position)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, help="folder with tokenizer.json")
    parser.add_argument("--prepared", required=True, type=pathlib.Path, help="folder that prepare.py fills")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="JSON file")
    parser.add_argument("--lengths", type=int, nargs="*", default=recipe.EVALUATION_LENGTHS)
    parser.add_argument("--tasks", nargs="*", default=recipe.ALL_TASKS)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--windows", type=int, default=96)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    device = torch.device(args.device)
    dtype = torch.bfloat16
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    model = Llama(Shape()).to(device)
    model.load_state_dict(export.load(args.model, device))
    model.eval()
    begin = time.time()
    context, position = perplexities(model, args.prepared / "held_out.npy", 0, device, dtype, args.windows, max(args.lengths))
    result = {"perplexity_by_context": context, "perplexity_by_position": position, "windows": args.windows}
    print(f"perplexity of the same tokens by context {context}\nby position {position} ({time.time() - begin:.0f} s)", flush=True)
    model = model.to(dtype)
    for norm in [m for m in model.modules() if type(m).__name__ == "RmsNorm"]:
        norm.float()
    result["scores"], result["samples"] = retrieval_scores(
        model, tokenizer, args.prepared, args.lengths, args.tasks, device, dtype, args.count)
    result["count"] = args.count
    args.output.write_text(json.dumps(result, indent=1))
    print(f"evaluated in {time.time() - begin:.0f} s")
    lengths = args.lengths
    print("task".ljust(16) + "".join(f"{n:8}" for n in lengths))
    for task, row in result["scores"].items():
        print(task.ljust(16) + "".join(f"{row.get(n, float('nan')):8.1f}" for n in lengths))


if __name__ == "__main__":
    main()

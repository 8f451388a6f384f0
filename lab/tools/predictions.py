#!/usr/bin/env python3
"""How well can a layer's queries be predicted from an earlier residual stream, and what do the errors cost? On a real model.

    pip install torch transformers
    predictions.py MODEL TEXT [--starts 0] [--fit 20000 30000] [--fit-text TEXT] [--first 4]

MODEL: a Llama model in Hugging Face's layout. It reads 4096 tokens of TEXT from each of `starts` on: a prompt and 512 decoded ones.
Layer l's true query is W_q norm(x[l]), with x[l] what enters the layer. A source is an earlier residual stream: x[l-2], the middle of
layer l-2 (x + attention), x[l-1] or the middle of l-1. Its error, which the last step knows, is e = x[l] - source ("residual") or true -
predicted query before RoPE ("query"). Estimates of e(t): none; w last: w e(t-1); mean: the prompt's but for its first 4 tokens; mean + w last:
mean + w (e(t-1) - mean); ema d: a running average with decay d; vectors: mean + g (source - its mean) + w (e(t-1) - mean), g and w fitted
for each dimension; matrix: M norm(source) + b, M fitted to the prompt (ridge), so that W_q + M is the source's own W_q; rank r: M in r
directions. "offline": fitted to other text (windows at `fit`). Of several w and d the best by mean cosine is shown. Means are over layers
from `first` on. Lost: attention mass (mean over a KV head's queries, in points of all mass) that the top rows by the true query hold and
those by the predicted one do not; ranked by the sum of the group's softmaxes over all but the first 4 and last 64 tokens, always attended.
"""
import argparse
import pathlib
import re

import torch
import torch.nn.functional as functional
from transformers import AutoModelForCausalLM, AutoTokenizer

SINK, RECENT, STEPS, TOKENS, D = 4, 64, 512, 4096, 64  # D: of a head
WEIGHTS, DECAYS, RANKS = [x / 10 for x in range(1, 11)], [0.5, 0.8, 0.9, 0.95, 0.98], (16, 64)
LIMITS, SHARES = (0.97, 0.95, 0.93, 0.9, 0.85), (0.1, 0.05)
COSTS = r"true|l-1.*(residual \| (none|mean|mean \+ 0.3 last|0.5 last)|query \| 0.5 last|matrix offline)$"
SOURCES = "x[l-2]", "middle of l-2", "x[l-1]", "middle of l-1"


def read(model, windows):
    """Yields (what enters the layer, that + attention, keys before RoPE), [windows][n][width] each, of every layer."""
    found, hooks = ([], [], []), []
    for layer in model.model.layers:
        hooks.append(layer.input_layernorm.register_forward_pre_hook(lambda module, inputs: found[0].append(inputs[0][0])))
        hooks.append(layer.post_attention_layernorm.register_forward_pre_hook(lambda module, inputs: found[1].append(inputs[0][0])))
        hooks.append(layer.self_attn.k_proj.register_forward_hook(lambda module, inputs, output: found[2].append(output[0])))
    for ids in windows:
        model.model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    for layer in range(len(model.model.layers)):
        yield [torch.stack(kind[layer::len(model.model.layers)]) for kind in found]


def heads(y, turn=None):
    """[heads][n][d] of [n][heads d], the last n tokens, after RoPE if turn = (cos, sin)."""
    y = y.view(len(y), -1, D).transpose(0, 1)
    if turn:
        cos, sin = (z[0, -y.shape[1]:] for z in turn)
        y = y * cos + torch.cat([-y[..., D // 2:], y[..., :D // 2]], -1) * sin
    return y


def fit(known, error):
    """Means of both, and g, w of error = mean + g (known - its mean) + w (last error - mean), from [windows][n][width]."""
    means = known[:, SINK:].mean((0, 1)), error[:, SINK:].mean((0, 1))
    y, last, own = error[:, SINK + 1:] - means[1], error[:, SINK:-1] - means[1], known[:, SINK + 1:] - means[0]
    a, b, c, e, f = ((y * z).sum((0, 1)) for y, z in ((own, own * 1.001), (own, last), (last, last * 1.001), (own, y), (last, y)))
    return *means, (c * e - b * f) / (a * c - b * b), (a * f - b * e) / (a * c - b * b)


def estimates(known, error, other):
    """Yields (name, estimate of the last STEPS errors); other: (known, error) of other text."""
    last, mean = error[-STEPS - 1:-1], error[SINK:-STEPS].mean(0)
    yield "none", torch.zeros_like(last)
    yield from ((f"{w} last", w * last) for w in WEIGHTS)
    yield "mean", mean.expand_as(last)
    yield from ((f"mean + {w} last", mean + w * (last - mean)) for w in WEIGHTS[:-1])
    for decay in DECAYS:
        slow = [mean]
        for y in last:
            slow.append(decay * slow[-1] + (1 - decay) * y)
        slow = torch.stack(slow[1:])
        yield from ((f"ema {decay}" + (f" + {w} last" if w else ""), slow + w * (last - slow)) for w in [0] + WEIGHTS[:5])
    for place, text in (("", (known[None, :-STEPS], error[None, :-STEPS])), (" offline", other)):
        known_mean, mean, g, w = fit(*text)
        yield "vectors" + place, mean + g * (known[-STEPS:] - known_mean) + w * (last - mean)
    yield "mean offline", mean.expand_as(last)


def matrices(source, missed):
    """Yields (name, M) from [windows][n][width] of normed sources (with a constant) and missed queries."""
    x, y = source[:, SINK:].flatten(0, 1), missed[:, SINK:].flatten(0, 1)
    square = x.T @ x
    change = torch.linalg.solve(square + 0.01 * square.diagonal().mean() * torch.eye(len(square)), x.T @ y)
    yield "matrix", change
    directions = torch.linalg.eigh(change.T @ square @ change).eigenvectors
    yield from ((f"matrix of rank {rank}", change @ directions[:, -rank:] @ directions[:, -rank:].T) for rank in RANKS)


class Costs:
    """Attention mass lost by choosing rows with predicted queries, at the last STEPS tokens of one layer."""

    def __init__(self, q, k):
        self.k, end, token = k, torch.arange(TOKENS - STEPS, TOKENS)[:, None] + 1, torch.arange(TOKENS)[None]
        self.outside = (token < SINK) | (token >= end - RECENT)
        self.counts = [torch.ceil(share * end - 1e-4).long() for share in SHARES]
        self.mass = self.logits(q).masked_fill(token >= end, -1e30).softmax(-1).mean(1)
        self.best = self.held(q)

    def logits(self, q):  # [KV heads][group][steps][n]
        q = q.view(len(self.k), -1, *q.shape[1:])
        return q @ self.k[:, None].transpose(2, 3) * q.shape[-1] ** -0.5

    def held(self, q):
        score = self.logits(q).masked_fill(self.outside, -1e30).softmax(-1).sum(1)
        held = self.mass.gather(-1, score.topk(int(self.counts[0].max()), -1).indices).cumsum(-1)
        return torch.stack([held.gather(-1, (count - 1).expand(len(held), -1, -1))[..., 0] for count in self.counts])


def measure(model, windows, others, options):
    """{name: {layer: [windows][KV heads][group][steps]}} of cosines, {name: {layer: [windows][shares][KV heads][steps]}} of lost mass."""
    count, past, cosines, lost = len(windows), [], {}, {}
    turn = model.model.rotary_emb(torch.ones(1), torch.arange(TOKENS)[None])
    for layer, (now, middle, keys) in enumerate(read(model, windows + others)):
        norm, project = model.model.layers[layer].input_layernorm, model.model.layers[layer].self_attn.q_proj
        streams, past = [y for pair in past for y in pair], (past + [(now, middle)])[-2:]
        true = project(norm(now))
        costs = [Costs(heads(true[i, -STEPS:], turn), heads(keys[i], turn)) for i in range(count)] if layer >= options.first else None

        def add(name, i, q):
            cosine = functional.cosine_similarity(heads(q), heads(true[i, -STEPS:]), dim=-1)
            cosines.setdefault(name, {}).setdefault(layer, []).append(cosine.view(keys.shape[-1] // D, -1, STEPS))
            if costs and re.search(COSTS, name):
                lost.setdefault(name, {}).setdefault(layer, []).append(costs[i].best - costs[i].held(heads(q, turn)))

        for i in range(count):
            add("the last step's true query | |", i, true[i, -STEPS - 1:-1])
        for name, source in zip(SOURCES[-len(streams):] if streams else (), streams):
            normed, error = norm(source), now - source
            plain = project(normed)
            missed, normed = true - plain, torch.cat([normed, torch.ones_like(normed[..., :1])], -1)
            offline = [(f"{how} offline", change) for how, change in matrices(normed[count:], missed[count:])]
            for i in range(count):
                for how, e in estimates(source[i], error[i], (source[count:], error[count:])):
                    add(f"{name} | residual | {how}", i, project(norm(source[i, -STEPS:] + e)))
                for how, e in estimates(plain[i], missed[i], (plain[count:], missed[count:])):
                    add(f"{name} | query | {how}", i, plain[i, -STEPS:] + e)
                for how, change in [*matrices(normed[i:i + 1, :-STEPS], missed[i:i + 1, :-STEPS]), *offline]:
                    fitted = plain[i] + normed[i] @ change
                    for w in [0] + WEIGHTS[:5]:
                        add(f"{name} | query | {how}" + (f" + {w} last" if w else ""), i,
                            fitted[-STEPS:] + w * (true[i] - fitted)[-STEPS - 1:-1])
    return cosines, lost


def table(title, *rows):
    print(f"\n{title}\n\n| " + " | ".join(rows[0]) + " |\n" + "| --- " * len(rows[0]) + "|")
    print(*("| " + " | ".join(row) + " |" for row in rows[1:]), sep="\n")


def report(cosines, lost, first):
    pool = {name: torch.stack([torch.stack(x) for layer, x in by.items() if layer >= first]) for name, by in cosines.items()}
    best = {}
    for name, x in pool.items():
        kind = re.sub(r"[01]\.\d+", "w", name)
        best[kind] = max(best.get(kind, (-1, "")), (x.mean().item(), name))
    table("Cosine with the true query, and shares below",
          ["source", "error in", "estimate", "mean"] + [f"{what} < {limit}" for what in ("head", "group") for limit in LIMITS], *(
              name.split(" | ") + [f"{mean:.4f}"] + [f"{(x < limit).float().mean():.1%}" for x in (pool[name], pool[name].mean(3)) for limit in LIMITS]
              for mean, name in best.values()))
    layers = sorted(set().union(*cosines.values()))
    table("Mean cosine by layer", ["prediction"] + [str(layer) for layer in layers], *(
        [name.replace(" |", ",")] + [f"{torch.stack(by[layer]).mean():.3f}" if layer in by else "" for layer in layers]
        for by, name in ((cosines[name], name) for _, name in best.values() if not re.search("ema", name))))
    head = ["prediction", "all", "p99", "> 0.97"] + [f"{low}-{high}" for high, low in zip(LIMITS, LIMITS[1:])] + ["< 0.85"]
    for at, share in enumerate(SHARES):
        rows = []
        for name, by in lost.items():
            x, cosine = 100 * torch.stack([torch.stack(y) for y in by.values()])[:, :, at], pool[name].mean(3)
            bins = [(cosine <= high) & (cosine > low) for high, low in zip((2.0,) + LIMITS, LIMITS + (-2.0,))]
            rows.append([name.replace(" |", ","), f"{x.mean():.2f}", f"{x.flatten().sort().values[int(0.99 * x.numel())]:.1f}"]
                        + [f"{x[b].mean():.2f} ({b.float().mean():.1%})" if b.any() else "-" for b in bins])
        table(f"Mass lost with {share:.0%} of the tokens, in points (share of the steps), by the mean cosine of the group", head, *rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--starts", type=int, nargs="+", default=[0])
    parser.add_argument("--fit", type=int, nargs="+", default=[20000, 30000], help="where the windows of offline estimates start")
    parser.add_argument("--fit-text", type=pathlib.Path, help="their text (default: TEXT)")
    parser.add_argument("--first", type=int, default=4, help="the first layer that counts in means")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tokenizer, texts = AutoTokenizer.from_pretrained(options.model), []
    for file, starts in ((options.text, options.starts), (options.fit_text or options.text, options.fit)):
        ids = tokenizer(file.read_text(), add_special_tokens=False).input_ids
        texts.append([ids[start:start + TOKENS] for start in starts])
    with torch.no_grad():
        report(*measure(model, *texts, options), options.first)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""When should a head reuse its rows, how many does it need, and what do 8-bit rows cost? Simulated on a real model.

    pip install torch safetensors tokenizers
    lab/tools/thresholds.py MODEL TEXT [--tokens 4096] [--start 0] [--layers 1:30]

MODEL: a Llama model in Hugging Face's layout (of GGUF, Transformers' from_pretrained(DIR, gguf_file=FILE) and save_pretrained write one). The model reads TEXT from token `start` on;
its last 512 tokens stand for decoded ones, what is before them for the prompt. Lost: attention mass that fresh rows
(10% of all, chosen with the true query) hold and the attended ones do not, mean over query heads, in points of all mass.
"""
import argparse
import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as functional
from safetensors.torch import load_file
from tokenizers import Tokenizer

SINK, RECENT, CARRY, SHARE, STEPS, BEFORE = 4, 64, 256, 0.1, 512, 128


def read(model, ids):
    """Yields (q [query heads][last tokens][d], k, v [KV heads][n][d]) of every layer, after RoPE."""
    config = json.loads((model / "config.json").read_text())
    weights = {name: w.float() for name, w in load_file(model / "model.safetensors").items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    d, n, eps = config["hidden_size"] // heads, len(ids), config["rms_norm_eps"]
    angle = torch.arange(n)[:, None] * (config["rope_theta"] ** (-torch.arange(0, d, 2) / d))[None]
    cos, sin = torch.cat([angle.cos()] * 2, 1), torch.cat([angle.sin()] * 2, 1)

    def rope(y):
        return y * cos + torch.cat([-y[..., d // 2:], y[..., :d // 2]], -1) * sin

    def norm(y, gain):
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * gain

    x = weights["model.embed_tokens.weight"][torch.tensor(ids)]
    for layer in range(config["num_hidden_layers"]):
        w = {name.split(".", 3)[3]: y for name, y in weights.items() if name.startswith(f"model.layers.{layer}.")}
        y = norm(x, w["input_layernorm.weight"])
        q, k, v = ((y @ w[f"self_attn.{p}_proj.weight"].T).view(n, -1, d).transpose(0, 1) for p in "qkv")
        q, k = rope(q), rope(k)
        yield q[:, -(STEPS + BEFORE):], k, v
        group = heads // kv_heads
        y = functional.scaled_dot_product_attention(q, k.repeat_interleave(group, 0), v.repeat_interleave(group, 0),
                                                    is_causal=True)
        x = x + y.transpose(0, 1).reshape(n, -1) @ w["self_attn.o_proj.weight"].T
        y = norm(x, w["post_attention_layernorm.weight"])
        gate, up = y @ w["mlp.gate_proj.weight"].T, y @ w["mlp.up_proj.weight"].T
        x = x + (functional.silu(gate) * up) @ w["mlp.down_proj.weight"].T


class Head:
    """The attention of one KV head's group at the last tokens, as steps of n = end tokens each."""

    def __init__(self, q, k, v):
        self.q, self.k, self.v, self.scale = q, k, v, q.shape[-1] ** -0.5
        n = k.shape[0]
        self.end = torch.arange(n - q.shape[1], n) + 1
        token = torch.arange(n)[None]
        self.visible = token < self.end[:, None]
        self.candidate = (token >= SINK) & (token < self.end[:, None] - RECENT)
        self.logits = (q @ k.T * self.scale).masked_fill(~self.visible, -1e30)
        self.mass = torch.softmax(self.logits, -1)
        # What the retrievers rank by: softmax over the candidates alone.
        self.score = torch.softmax(self.logits.masked_fill(~self.candidate, -1e30), -1).mean(0)

    def top(self):
        """[steps][n]: the rows that each step's query chooses."""
        count = np.ceil(SHARE * self.end.numpy() - 1e-9)
        best = self.score.topk(int(count.max()), -1).indices
        keep = torch.arange(best.shape[1])[None] < torch.tensor(count)[:, None]
        return torch.zeros_like(self.score).scatter_(1, best, keep.float())

    def pairs(self):
        """For rows chosen at step j and attended at t: similarity, lost mass, share of replaced rows [t][j]."""
        unit = functional.normalize(self.q, dim=-1)
        cosine = unit @ unit.transpose(1, 2)
        similarity = torch.where((cosine > 0).all(0), cosine.shape[0] / (1 / cosine.clamp_min(1e-6)).sum(0), cosine.amin(0))
        chosen, mass = self.top(), self.mass.mean(0)
        held = mass @ chosen.T
        fresh = held.diagonal()
        before = torch.cat([torch.zeros(len(mass), 1), mass.cumsum(-1)], 1)
        recent = self.end - RECENT
        carried = torch.minimum(torch.maximum(recent[:, None] - CARRY, recent[None]), recent[:, None])
        held = held + before.gather(1, recent[:, None]) - before.gather(1, carried)
        replaced = 1 - chosen @ chosen.T / chosen.sum(1)[:, None]
        return similarity, fresh[:, None] - held, replaced


def simulate(similarity, lost, replaced, threshold, age=1 << 30, learn=None, begin=BEFORE):
    """All heads step by step: [heads][t][j] each. threshold() [heads]. Returns hits, lost mass and moved rows, a share of
    those chosen: [steps][heads] each."""
    heads, steps, _ = similarity.shape
    every, label = np.arange(heads), np.full(heads, begin - 1)
    due = begin - 1 - every * 7919 % age if age < 1 << 20 else label
    hits, losses, moved = [], [], []
    for t in range(begin, steps):
        hit = (similarity[every, t, label] > threshold()) & (t - due < age)
        hits.append(hit)
        losses.append(np.where(hit, lost[every, t, label], 0))
        moved.append(np.where(hit, 0, replaced[every, t, label]))
        if learn is not None:
            learn(~hit, 1 - similarity[every, t, label], lost[every, t, label], replaced[every, t, label])
        label, due = np.where(hit, label, t), np.where(hit, due, t)
    return np.array(hits), np.array(losses), np.array(moved)


def speculate(similarity, lost, replaced, tau):
    """FreeKV's rule: rows are chosen at every step, for the next one; a head whose query has turned too far since the last
    step chooses before it attends. Returns as simulate(), for hits the heads that need not."""
    now = np.arange(BEFORE, similarity.shape[1])
    hits = similarity[:, now, now - 1] > tau
    return hits.T, np.where(hits, lost[:, now, now - 1], 0).T, replaced[:, now, now - 1].T


def report_thresholds(pairs):
    heads = len(pairs[0])

    def show(name, hits, losses, moved):
        print(f"{name:52s} hits {hits.mean():6.1%}  lost {100 * losses.mean():6.3f}  p99 {100 * np.quantile(losses, 0.99):6.2f}"
              f"  moved {moved.mean():6.1%}", flush=True)

    for tau in (0.7, 0.75, 0.8, 0.85, 0.9, 0.95):
        show(f"one threshold {tau}", *simulate(*pairs, lambda tau=tau: tau))
    for tau in (-1, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95):
        show(f"the last step's rows above {tau}", *speculate(*pairs, tau))
    for age in (128, 64, 32, 16):
        show(f"one threshold 0.7, refresh after {age} steps", *simulate(*pairs, lambda: 0.7, age))
    grid = np.concatenate([np.arange(0.2, 0.9, 0.05), np.arange(0.9, 1, 0.02)])
    for last in (32, 128):
        for most in (0.002, 0.005, 0.01):
            tau = np.full(heads, np.nan)
            for x in grid:  # of the prompt's last queries, the lowest that loses no more than `most`
                losses = simulate(*(y[:, :BEFORE, :BEFORE] for y in pairs), lambda x=x: x, begin=BEFORE - last + 1)[1]
                tau = np.where(np.isnan(tau) & (losses.mean(0) <= most), x, tau)
            tau = np.where(np.isnan(tau), grid[-1], tau)
            show(f"fitted to the prompt's last {last} queries, {most}", *simulate(*pairs, lambda tau=tau: tau))
    for what, limits in (("lost", (0.01, 0.015, 0.02)), ("replaced", (0.2, 0.25, 0.3))):
        for limit in limits:  # tau = 1 - limit / rate, with rate the mean of (what a refresh finds) / (1 - similarity)
            rate = np.full(heads, limit / 0.1)

            def learn(missed, distance, lost, replaced, rate=rate, what=what):
                found = np.maximum(lost if what == "lost" else replaced, 0) / np.maximum(distance, 0.01)
                rate[:] = np.where(missed, rate + 0.1 * (found - rate), rate)

            show(f"learned from what refreshes find {what}, {limit}",
                 *simulate(*pairs, lambda rate=rate, limit=limit: np.clip(1 - limit / np.maximum(rate, 1e-4), 0.7, 0.95), learn=learn))


def budgets(head, results):
    """Adds (rows, lost mass of all) of every eighth step by rule."""
    steps = torch.arange(BEFORE, len(head.end), 8)
    score, mass, own = head.score[steps], (head.mass.mean(0) * head.candidate), head.candidate[steps].sum(-1)
    order = score.argsort(-1, descending=True)
    curve = mass[steps].gather(1, order).cumsum(-1)
    ranked, total = score.gather(1, order), mass[steps].sum(-1)
    end = head.end[steps]
    of_prompt = head.mass.mean(0)[BEFORE - 32:BEFORE] * head.candidate[BEFORE - 32:BEFORE]

    def add(name, rows, least=0.02, most=0.3):
        rows = torch.minimum(torch.maximum(rows, least * end), most * end).long().clamp_min(1)
        results.setdefault(name, []).append((rows / end, total - curve.gather(1, rows[:, None] - 1)[:, 0]))

    for share in (0.05, 0.075, 0.1, 0.125, 0.15, 0.2):
        add(f"{share:.1%} of the tokens", share * end, most=1)
    for times in (0.5, 0.75, 1, 1.5, 2):
        for most in (0.2, 0.3):
            add(f"rows of {times} times the mean score, at most {most:.0%}", (ranked * own[:, None] > times).sum(-1), most=most)
    for share in (0.85, 0.9, 0.95):
        add(f"{share:.0%} of the candidates' mass", (ranked.cumsum(-1) < share).sum(-1) + 1)
    for least in (0.1, 0.2, 0.3):  # of all attention, not of the candidates'
        above = (mass[steps] * end[:, None] > least).sum(-1)
        add(f"rows of {least} times the mean of all attention", above)
        add(f"rows of {least} times that at the prompt's end, for good", (of_prompt * end[0] > least).sum(-1).float().mean().expand(len(end)))


def eight_bits(head, results):
    """Adds the relative error of the attention output by what is kept in 8 bits."""
    steps = torch.arange(BEFORE, len(head.end), 16)
    part, largest = {"fp8": lambda x: x.to(torch.float8_e4m3fn).float(), "int8": torch.round}, {"fp8": 448, "int8": 127}
    chosen = head.top()[steps].bool()
    attended = chosen | (head.visible & ~head.candidate)[steps]
    logits, full = head.logits[:, steps], head.mass[:, steps] @ head.v

    def output(k, v):
        of_chosen = head.q[:, steps] @ k.T * head.scale
        weight = torch.softmax(torch.where(chosen, of_chosen, logits).masked_fill(~attended, -1e30), -1)
        return (weight * chosen) @ v + (weight * ~chosen) @ head.v

    def add(name, one, other):
        results.setdefault(name, []).append(((one - other).norm(dim=-1) / full.norm(dim=-1)).flatten())

    selected = output(head.k, head.v)
    add("selection", selected, full)
    for name in part:
        def rounded(x, name=name):
            scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / largest[name]
            return part[name](x / scale) * scale
        add(f"K in {name}", output(rounded(head.k), head.v), selected)
        add(f"V in {name}", output(head.k, rounded(head.v)), selected)
        add(f"K and V in {name}", output(rounded(head.k), rounded(head.v)), selected)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--layers", default="1:1000", help="first:end; layer 0 is resident")
    options = parser.parse_args()
    first, end = map(int, options.layers.split(":"))
    ids = Tokenizer.from_file(str(options.model / "tokenizer.json")).encode(options.text.read_text()).ids
    ids = ids[options.start:options.start + options.tokens]
    pairs, rows, errors = [], {}, {}
    with torch.no_grad():
        for layer, (q, k, v) in enumerate(read(options.model, ids)):
            for h in range(len(k)) if first <= layer < end else ():
                group = len(q) // len(k)
                head = Head(q[h * group:(h + 1) * group], k[h], v[h])
                pairs.append([x.half() for x in head.pairs()])
                budgets(head, rows)
                eight_bits(head, errors)
    report_thresholds([torch.stack(x).float().numpy() for x in zip(*pairs)])
    for name, found in rows.items():
        share, lost = (torch.cat(x) for x in zip(*found))
        print(f"{name:60s} rows {share.mean():6.1%}  lost {100 * lost.mean():6.3f}  p99 {100 * lost.quantile(0.99):6.2f}")
    for name, found in errors.items():
        error = torch.cat(found)
        print(f"{name:60s} error of the output {error.mean():6.2%}  p99 {error.quantile(0.99):6.2%}")


if __name__ == "__main__":
    main()

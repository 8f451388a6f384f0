#!/usr/bin/env python3
"""Extends the context of a Llama model: RoPE by YaRN, and an adapter of low rank trained on rows of long texts, on one GPU.

    train.py MODEL.gguf ROWS.npy OUTPUT.safetensors [--factor 4] [--rank 16] [--seconds 480] [--held-out FOLDER]

ROWS.npy is written by texts.py. What is trained: W + up @ down of the four projections of attention (up [outputs, rank], down [rank,
inputs]), and the norms. OUTPUT has these in bf16 and, in its metadata, what config.json needs; directory.py adds it to the model.
A log of the loss, and of the loss by position on the texts held out before and after, goes to OUTPUT with the suffix .json.
"""
import argparse
import json
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from directory import open_source

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")


def yarn(config: dict, factor: float) -> tuple[torch.Tensor, float]:
    """Frequencies, [head_dim / 2] float64, and the factor of cos and sin (YaRN, arXiv 2309.00071, section 3.4)."""
    dim = config["hidden_size"] // config["num_attention_heads"]
    base, trained = config["rope_theta"], config["max_position_embeddings"]
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    own = base ** -exponents
    if factor == 1:
        return own, 1.0
    low, high = (dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
    stretched = ((torch.arange(dim // 2) - low) / (high - low)).clamp(0, 1)
    return own * (1 - stretched) + own / factor * stretched, 0.1 * math.log(factor) + 1


class Model(torch.nn.Module):
    """Llama in bf16 with frozen weights, an adapter and norms in float32."""

    def __init__(self, source, factor: float, rank: int):
        super().__init__()
        self.config, self.factor = source.config(), factor
        self.eps = self.config["rms_norm_eps"]
        self.heads, self.kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.layers = self.config["num_hidden_layers"]
        self.frozen = {}
        parameters = {}
        for name, weight in source.weights.items():
            if name.endswith("norm.weight"):
                parameters[name] = weight
            elif name.split(".")[-2] in PROJECTIONS:
                parameters[f"{name}.up"] = torch.zeros(weight.shape[0], rank)
                parameters[f"{name}.down"] = torch.randn(rank, weight.shape[1]) / math.sqrt(weight.shape[1])
            self.frozen[name] = weight.to(torch.bfloat16)
        self.trained = torch.nn.ParameterDict({name.replace(".", "/"): values for name, values in parameters.items()})

    def place(self, device, length: int):
        self.to(device)
        self.frozen = {name: weight.to(device) for name, weight in self.frozen.items()}
        frequencies, scale = yarn(self.config, self.factor)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
        angles = torch.cat([angles, angles], -1)
        self.cos, self.sin = (scale * angles.cos()).float().to(device), (scale * angles.sin()).float().to(device)
        return self

    def weight(self, name: str) -> torch.Tensor:
        own, key = self.frozen[name], name.replace(".", "/")
        if f"{key}/up" in self.trained:
            return (own.float() + self.trained[f"{key}/up"] @ self.trained[f"{key}/down"]).to(torch.bfloat16)
        return self.trained[key] if key in self.trained else own

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [batch, length]; the last layer's normed output [batch, length, width]."""
        x = F.embedding(ids, self.frozen["model.embed_tokens.weight"])
        cos, sin = self.cos[:ids.shape[1]], self.sin[:ids.shape[1]]
        for layer in range(self.layers):
            names = [f"self_attn.{p}" for p in PROJECTIONS] + [f"mlp.{p}" for p in ("gate_proj", "up_proj", "down_proj")] + list(NORMS)
            weights = [self.weight(f"model.layers.{layer}.{name}.weight") for name in names]
            x = run_layer(x, cos, sin, *weights, self.heads, self.kv_heads, self.eps)
        return norm(x, self.weight("model.norm.weight"), self.eps)

    def losses(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [1, length + 1]; the loss of each position but the first, [length]."""
        hidden = self(ids[:, :-1])[0]
        head = self.frozen.get("lm_head.weight", self.frozen["model.embed_tokens.weight"])
        return torch.cat([torch.utils.checkpoint.checkpoint(part_losses, h, head, t, use_reentrant=False)
                          for h, t in zip(hidden.split(8192), ids[0, 1:].split(8192))])


def part_losses(hidden, head, targets):
    return F.cross_entropy(F.linear(hidden, head).float(), targets, reduction="none")


def norm(x, weight, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rotate(x, cos, sin):
    low, high = x.chunk(2, -1)
    return (x * cos + torch.cat([-high, low], -1) * sin).to(x.dtype)


def inputs_of_attention(x, cos, sin, q, k, v, before, heads, kv_heads, eps):
    batch, length, _ = x.shape
    y = norm(x, before, eps)
    split = [F.linear(y, w).view(batch, length, n, -1).transpose(1, 2) for w, n in ((q, heads), (k, kv_heads), (v, kv_heads))]
    repeats = heads // kv_heads
    return (rotate(split[0], cos, sin), rotate(split[1], cos, sin).repeat_interleave(repeats, 1),
            split[2].repeat_interleave(repeats, 1))


def rest_of_layer(x, attended, o, gate, up, down, behind, eps):
    x = x + F.linear(attended.transpose(1, 2).flatten(2), o)
    y = norm(x, behind, eps)
    return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)


def run_layer(x, cos, sin, q, k, v, o, gate, up, down, before, behind, heads, kv_heads, eps):
    rows = inputs_of_attention(x, cos, sin, q, k, v, before, heads, kv_heads, eps)
    return rest_of_layer(x, F.scaled_dot_product_attention(*rows, is_causal=True), o, gate, up, down, behind, eps)


@torch.no_grad()
def held_out_losses(model, texts: dict, length: int) -> dict:
    """Mean loss by text and by eighths of the context, of up to four rows a text."""
    found = {}
    for name, ids in texts.items():
        rows = [ids[i * length:(i + 1) * length + 1] for i in range(4) if len(ids) > (i + 1) * length]
        if rows:
            losses = torch.stack([model.losses(row[None]) for row in rows]).mean(0)
            found[name] = [round(part.mean().item(), 4) for part in losses.chunk(8)]
    return found


def rate(done: float) -> float:
    """The learning rate's share: 5% of the way up, then along a cosine to a tenth."""
    return done / 0.05 if done < 0.05 else 0.1 + 0.45 * (1 + math.cos(math.pi * (done - 0.05) / 0.95))


def train(model, rows, arguments, device) -> list[dict]:
    groups = [{"params": [p for n, p in model.trained.items() if n.endswith(("/up", "/down"))], "top": arguments.rate},
              {"params": [p for n, p in model.trained.items() if not n.endswith(("/up", "/down"))], "top": arguments.rate / 10}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=device.type == "cuda")
    log, start, step, at = [], time.monotonic(), 0, 0
    order = np.random.default_rng(1).permutation(len(rows))
    while (done := (time.monotonic() - start) / arguments.seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = group["top"] * rate(done)
        total = 0.0
        for _ in range(arguments.batch):
            row = torch.from_numpy(rows[order[at % len(rows)]].astype(np.int64)).to(device)[None]
            loss = model.losses(row).mean() / arguments.batch
            loss.backward()
            total += loss.detach()
            at += 1
        grown = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        log.append({"step": step, "rows": at, "seconds": round(time.monotonic() - start, 1), "loss": round(float(total), 4),
                    "gradient": round(float(grown), 3)})
        if step % 10 == 0 or step < 4:
            print(log[-1], flush=True)
    return log


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("rows", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--factor", type=float, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4, help="rows a step")
    parser.add_argument("--rate", type=float, default=5e-4, help="highest learning rate of the adapter; a tenth of it for norms")
    parser.add_argument("--seconds", type=float, default=480, help="how long to train")
    parser.add_argument("--held-out", type=pathlib.Path, help="folder of texts for the loss by position")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device(arguments.device)
    rows = np.load(arguments.rows, mmap_mode="r")
    length = rows.shape[1] - 1
    source = open_source(arguments.model)
    texts = {}
    if arguments.held_out:
        tokenizer = source.tokenizer()
        texts = {path.stem: torch.tensor(tokenizer.encode(path.read_text(encoding="utf-8")).ids, device=device)
                 for path in sorted(arguments.held_out.glob("*.txt"))}
    plain = held_out_losses(Model(source, 1, 1).place(device, length), texts, length)
    print("as published", plain, flush=True)
    model = Model(source, arguments.factor, arguments.rank).place(device, length)
    before = held_out_losses(model, texts, length)
    print("with YaRN", before, flush=True)
    global inputs_of_attention, rest_of_layer
    if device.type == "cuda":
        inputs_of_attention, rest_of_layer = torch.compile(inputs_of_attention), torch.compile(rest_of_layer)
    log = train(model, rows, arguments, device)
    after = held_out_losses(model, texts, length)
    print("trained", after, flush=True)
    config = dict(max_position_embeddings=int(model.config["max_position_embeddings"] * arguments.factor),
                  rope_scaling={"rope_type": "yarn", "factor": arguments.factor,
                                "original_max_position_embeddings": model.config["max_position_embeddings"]})
    tensors = {name.replace("/", "."): p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in model.trained.items()}
    save_file(tensors, arguments.output, metadata={"format": "pt", "config": json.dumps(config)})
    report = {"held out, loss by eighths of the context": {"as published": plain, "with YaRN": before, "trained": after}, "log": log}
    arguments.output.with_suffix(".json").write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
                     set_priority=True):
        main()

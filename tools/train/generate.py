"""Greedy generation of a batch of prompts of different lengths, with a KV cache, in plain PyTorch."""

import torch

from model import Llama, rope_tables, rotate


class Cache:
    """Keys and values of every layer, [batch, kv_heads, capacity, head_dim] bfloat16."""

    def __init__(self, shape, batch: int, capacity: int, device, dtype):
        size = (shape.layers, 2, batch, shape.kv_heads, capacity, shape.head_dim)
        self.data = torch.zeros(size, device=device, dtype=dtype)
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)


@torch.no_grad()
def prefill(model: Llama, ids, tables, cache: Cache, row: int):
    """Fills one row of the cache; returns the logits [vocabulary] after the last token."""
    length = ids.shape[0]
    cos, sin = tables[0][:length], tables[1][:length]
    x = model.embed_tokens(ids[None]).to(cache.data.dtype)
    for i, layer in enumerate(model.layers):
        q, k, v = layer.self_attn.heads(layer.input_layernorm(x), cos, sin)
        cache.data[i, 0, row, :, :length], cache.data[i, 1, row, :, :length] = k[0], v[0]
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + layer.self_attn.join(y)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    cache.lengths[row] = length
    return model.logits(model.norm(x[:, -1]))[0].float()


@torch.no_grad()
def decode(model: Llama, tokens, tables, cache: Cache, longest: int):
    """One step for every row: tokens [batch] to logits [batch, vocabulary]. `longest` bounds the lengths."""
    shape = model.shape
    batch = tokens.shape[0]
    at = cache.lengths
    cos, sin = tables[0][at][:, None, None], tables[1][at][:, None, None]
    span = longest + 1
    hidden = torch.arange(span, device=tokens.device)[None] > at[:, None]
    everyone = torch.arange(batch, device=tokens.device)
    x = model.embed_tokens(tokens)[:, None].to(cache.data.dtype)
    for i, layer in enumerate(model.layers):
        q, k, v = layer.self_attn.heads(layer.input_layernorm(x), cos, sin)
        keys, values = cache.data[i]
        keys[everyone, :, at], values[everyone, :, at] = k[:, :, 0], v[:, :, 0]
        groups = q.view(batch, shape.kv_heads, -1, shape.head_dim)
        scores = (groups @ keys[:, :, :span].mT).float() * shape.head_dim ** -0.5
        scores.masked_fill_(hidden[:, None, None], float("-inf"))
        y = scores.softmax(-1).to(x.dtype) @ values[:, :, :span]
        x = x + layer.self_attn.join(y.reshape(batch, -1, 1, shape.head_dim))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    cache.lengths += 1
    return model.logits(model.norm(x[:, 0])).float()


def greedy(model: Llama, prompts: list[list[int]], limit: int, stop: set[int], device, dtype=torch.bfloat16) -> list[list[int]]:
    """The generated ids of each prompt, up to `limit`, without the token that ended it."""
    longest = max(map(len, prompts))
    tables = rope_tables(model.shape, longest + limit + 1, device)
    cache = Cache(model.shape, len(prompts), longest + limit, device, dtype)
    logits = torch.stack([prefill(model, torch.tensor(p, device=device), tables, cache, i) for i, p in enumerate(prompts)])
    made, open_rows = [], torch.ones(len(prompts), dtype=torch.bool, device=device)
    stops = torch.tensor(sorted(stop), device=device)
    for step in range(limit):
        tokens = logits.argmax(-1)
        made.append(tokens)
        open_rows &= ~torch.isin(tokens, stops)
        if step + 1 == limit or (step % 8 == 7 and not open_rows.any()):
            break
        logits = decode(model, tokens, tables, cache, longest + step)
    rows = torch.stack(made, 1).tolist()
    ends = [next((i for i, t in enumerate(row) if t in stop), len(row)) for row in rows]
    return [row[:end] for row, end in zip(rows, ends)]

"""The Llama architecture in plain PyTorch, with parameter names that map one to one to Hugging Face's."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Shape:
    vocabulary: int = 4096
    width: int = 512
    layers: int = 6
    query_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 1152
    theta: float = 1e6
    eps: float = 1e-5
    context: int = 32768


def rope_tables(shape: Shape, length: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [length, head_dim] float32, in the rotate-half layout."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device=device) / shape.head_dim
    angles = torch.arange(length, dtype=torch.float64, device=device)[:, None] * shape.theta ** -exponent
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().float(), angles.sin().float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [batch, heads, length, head_dim]; cos and sin broadcast against it."""
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-high, low], dim=-1) * sin).to(x.dtype)


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.width, shape.query_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.query_heads * shape.head_dim, shape.width, bias=False)

    def heads(self, x, cos, sin):
        """Rotated queries and keys, values: each [batch, heads, length, head_dim]."""
        batch, length, _ = x.shape
        split = lambda y: y.view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def join(self, y):
        batch, _, length, _ = y.shape
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x, cos, sin):
        q, k, v = self.heads(x, cos, sin)
        return self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


class Mlp(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.input_layernorm = RmsNorm(shape.width, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.width, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.width, shape.eps)
        self.initialise()

    def initialise(self):
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        for name, weight in self.named_parameters():
            # Layers start as the identity, so that depth does not cost stability at high rates.
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)
            elif name.endswith("proj.weight"):
                nn.init.normal_(weight, std=0.6 * weight.shape[1] ** -0.5)

    def hidden(self, ids, cos, sin):
        x = self.embed_tokens(ids)
        if torch.is_autocast_enabled(ids.device.type):
            x = x.bfloat16()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def logits(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype))

    def forward(self, ids, cos, sin):
        """Logits [batch, length, vocabulary] for ids [batch, length]; cos, sin [length, head_dim]."""
        return self.logits(self.hidden(ids, cos, sin))

"""Attention whose heads mix full and streaming attention: a * full + (1 - a) * streaming.

CLO's equation 15: every query head has its own a. Streaming attention sees the first `sink` tokens
and the last `recent` ones, including the query's own.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

# Fewer keys per block than this would leave the GPU's matrix units idle.
LEAST_BLOCK = 128
# Not cuDNN: a step of 32K tokens takes 106 ms with it on an H200 and 144 ms with flash attention, but cuDNN needs 0.2 s
# more for every new length, and nearly every document has a different one.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def full_attention(q, k, v, scaling: float):
    """q [1, Hq, n, d], k and v [1, Hkv, n, d]; [1, Hq, n, d]. Causal."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1])


def streaming_mask(length: int, group: int, sink: int, recent: int, device):
    """The blocks' geometry and mask: (block, lead, mask [blocks, 1, group * block, sink + lead + block]).

    A block of queries sees the sink's keys, its own keys, and the `lead` keys before it.
    """
    block = max(recent, LEAST_BLOCK)
    lead = recent + -(sink + recent + block) % 16  # kernels need aligned rows of the mask
    blocks = -(-length // block)
    starts = torch.arange(blocks, device=device)[:, None, None] * block
    query = starts + torch.arange(block, device=device)[None, :, None]
    local = starts - lead + torch.arange(lead + block, device=device)[None, None]
    near = (local >= 0) & (local <= query) & (local > query - recent)
    # A sink key inside the window is already included.
    first = torch.arange(sink, device=device)[None, None].expand(blocks, 1, sink) <= query - recent
    mask = torch.cat([first, near], -1)
    return block, lead, mask.repeat(1, group, 1)[:, None]


def streaming_attention(q, k, v, scaling: float, sink: int, recent: int, geometry=None):
    """Shapes as in full_attention; time and memory grow with n, not with its square.

    `geometry` is the result of streaming_mask for these shapes (computed here if absent).
    """
    _, heads, length, dim = q.shape
    kv_heads = k.shape[1]
    if length <= sink + recent:
        return full_attention(q, k, v, scaling)
    group = heads // kv_heads
    block, lead, mask = geometry or streaming_mask(length, group, sink, recent, q.device)
    blocks = mask.shape[0]
    tail = blocks * block - length

    def blocked(x):
        local = F.pad(x[0], (0, 0, lead, tail)).unfold(1, lead + block, block)  # [Hkv, blocks, d, keys]
        first = x[0, :, None, :sink].expand(-1, blocks, -1, -1)
        return torch.cat([first, local.mT], 2).transpose(0, 1)  # [blocks, Hkv, sink + keys, d]

    # The query heads of a group share the keys: they become consecutive rows.
    queries = F.pad(q[0], (0, 0, 0, tail)).view(kv_heads, group, blocks, block, dim)
    queries = queries.permute(2, 0, 1, 3, 4).reshape(blocks, kv_heads, group * block, dim)
    out = F.scaled_dot_product_attention(queries, blocked(k), blocked(v), attn_mask=mask, scale=scaling)
    out = out.view(blocks, kv_heads, group, block, dim).permute(1, 2, 0, 3, 4)
    return out.reshape(1, heads, blocks * block, dim)[:, :, :length]


class HeadMix:
    """The heads' a, [layers, query heads] float32, and the attention function that reads them.

    A model loaded with attn_implementation=HeadMix.NAME after the constructor mixes its heads while
    `mixing` is true and is the plain model otherwise. Only one can exist at a time: the name is global.
    """

    NAME = "mixed_heads"

    def __init__(self, layers: int, heads: int, sink: int, recent: int, device):
        if sink < 0 or recent < 1:
            raise ValueError(f"sink {sink} and recent {recent}: sink must be 0 or more, recent 1 or more")
        self.alpha = torch.nn.Parameter(torch.ones(layers, heads, device=device))
        self.sink, self.recent, self.mixing = sink, recent, False
        self.geometry = (None, None)
        AttentionInterface.register(self.NAME, self.attention)
        # One document at a time, without padding: the causal mask is the only one needed.
        AttentionMaskInterface.register(self.NAME, lambda *args, **kwargs: None)

    def attention(self, module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        """Called by Transformers; returns [1, n, Hq, d]."""
        length = query.shape[2]
        window = kwargs.get("sliding_window")
        if window is not None and window < length:
            raise ValueError(f"the model sees {window} tokens back at most (sliding_window); use shorter documents")
        if query.shape[0] != 1 or key.shape[2] != length or attention_mask is not None:
            raise ValueError("one whole unpadded document at a time")
        with sdpa_kernel(BACKENDS):
            return self._mixed(module.layer_idx, query, key, value, scaling).transpose(1, 2), None

    def _mixed(self, layer, query, key, value, scaling):
        full = full_attention(query, key, value, scaling)
        if not self.mixing:
            return full
        length = query.shape[2]
        what = (length, self.sink, self.recent, query.shape[1] // key.shape[1])
        if self.geometry[0] != what and length > self.sink + self.recent:
            self.geometry = (what, streaming_mask(length, what[3], self.sink, self.recent, query.device))
        streaming = streaming_attention(query, key, value, scaling, self.sink, self.recent, self.geometry[1])
        return torch.lerp(streaming, full, self.alpha[layer].to(full.dtype)[None, :, None, None])

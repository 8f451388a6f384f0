"""Hugging Face's models with LiteCache's KV cache: to see what a policy does to a model, not for speed.

    from litecache_llm.transformers import LiteCache

    cache = LiteCache(model, kv_policy="litecache", kv_budget="10%", device_memory="1GiB", host_memory="2GiB")
    model.generate(**inputs, past_key_values=cache, max_new_tokens=100)
    print(cache.hit_ratios())

A model on a GPU needs a library that was built with CUDA: attention then runs on the same GPU, and nothing is copied. It is computed in
float32; rows are stored in bfloat16 unless f32_rows is set.
"""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ._library import Unsupported
from .kv_cache import KvCache, KvPart

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import KvOptions

_NAME = "litecache"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class _Layer(CacheLayerMixin):
    """Tells Transformers how long the cache is. The rows are stored by attention, which has the queries as well."""

    def __init__(self, cache: LiteCache, index: int):
        super().__init__()
        self._cache, self._index = cache, index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        # How the attention function learns of the cache.
        key_states._litecache = (self._cache, self._index)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self._cache.length()

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        if self._index == 0:
            self._cache.clear()

    def crop(self, max_length: int) -> None:
        raise Unsupported("LiteCache: tokens cannot be taken back, which prompt lookup and assistant models need: leave out "
                          "prompt_lookup_num_tokens and assistant_model")

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        if self._index == 0:
            self._cache.reorder(beam_idx.tolist())


class LiteCache(Cache):
    """A KV cache for `past_key_values` of a decoder of Transformers.

    model: any whose layers all attend causally to all earlier tokens, as Llama's, Qwen's and Mistral's do; it is set to attention
    "litecache", which with any other cache is "sdpa". The keywords are those of KvCache; a profile that `litecache profile` wrote
    into the model's folder is used. device: where the cache is; unless given the model's GPU, or the CPU. From another device queries,
    keys and values are copied, layer by layer: device="cpu" works for every model. `kv`, `stats()` and `hit_ratios()` are the KvCache and its
    statistics. Sequences of a batch have the same length: padding is refused. Beams are supported.
    """

    def __init__(self, model: Any, *, f32_rows: bool = False, threads: int = 0, device: Any = None, **options: Unpack[KvOptions]):
        config = model.config.get_text_config(decoder=True)
        heads = config.num_attention_heads
        if device is None:
            device = model.device if model.device.type == "cuda" else "cpu"
        profile = Path(model.name_or_path) / "litecache-profile.safetensors"
        if options.get("profile", "auto") == "auto" and profile.is_file():
            options["profile"] = profile
        self.kv = KvCache(layers=config.num_hidden_layers, q_heads=heads,
                          kv_heads=getattr(config, "num_key_value_heads", None) or heads,
                          head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads, f32_rows=f32_rows,
                          threads=threads, device=device, **options)
        self.stats, self.hit_ratios = self.kv.stats, self.kv.hit_ratios
        self._sequences: list[int] = []
        super().__init__(layers=[_Layer(self, index) for index in range(config.num_hidden_layers)])
        model.set_attn_implementation(_NAME)

    def length(self) -> int:
        """Tokens in the cache."""
        return self.kv.length(self._sequences[0]) if self._sequences else 0

    def clear(self) -> None:
        """Removes all tokens."""
        for sequence in self._sequences:
            self.kv.remove(sequence)
        self._sequences = []

    def reorder(self, parents: list[int]) -> None:
        """Sequence i of the batch continues what sequence parents[i] was."""
        old, self._sequences = self._sequences, [self.kv.fork(self._sequences[parent]) for parent in parents]
        for sequence in old:
            self.kv.remove(sequence)

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               scale: Optional[float]) -> torch.Tensor:
        """query [batch, q_heads, rows, head_dim], key and value [batch, kv_heads, rows, head_dim]; returns [batch, rows, q_heads,
        head_dim]."""
        batch, _, rows, head_dim = query.shape
        if layer == 0:
            if not self._sequences:
                self._sequences = [self.kv.add() for _ in range(batch)]
            if len(self._sequences) != batch:
                raise Unsupported(f"a batch of {batch} for a cache of {len(self._sequences)} sequences: use a new cache")
            decode = rows == 1 and self.length() > 0
            self.kv.begin_step([KvPart(sequence, rows, decode) for sequence in self._sequences])

        dtype = query.dtype if query.dtype in _DTYPES else torch.float32

        def flat(tensor: torch.Tensor) -> torch.Tensor:
            rows_first = tensor.detach().transpose(1, 2).to(self.kv.device, dtype)
            return rows_first.reshape(batch * rows, tensor.shape[1], head_dim).contiguous()

        out = self.kv.attend(layer, flat(query), flat(key), flat(value), scale=scale)
        if layer == self.kv.layers - 1:
            self.kv.end_step()
        return out.reshape(batch, rows, -1, head_dim).to(query.device, query.dtype)


def _attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               attention_mask: Optional[torch.Tensor], scaling: Optional[float] = None, dropout: float = 0.0,
               **kwargs: Any) -> tuple[torch.Tensor, None]:
    found = getattr(key, "_litecache", None)
    if found is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise Unsupported(f"LiteCache: the model's attention has {name}, which this cache does not support")
    if module.training:
        raise Unsupported("LiteCache: it has no gradients: call model.eval()")
    # The last token sees all others, unless some are padding or outside a sliding window.
    if attention_mask is not None and not (attention_mask.dtype == torch.bool and bool(attention_mask[:, :, -1].all())):
        raise Unsupported("LiteCache: the attention mask leaves out earlier tokens (padding, or a sliding window): use prompts of "
                          "one length, without padding")
    cache, layer = found
    return cache.attend(layer, query, key, value, scaling), None


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)

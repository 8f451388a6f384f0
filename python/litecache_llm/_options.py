"""The options of the engine and of the KV cache; made by python/make_options.py."""
from __future__ import annotations

import os
from typing import TypedDict, Union


class KvOptions(TypedDict, total=False):
    """Options of the KV cache; litecache_llm.options(kv_only=True) describes them."""

    kv_policy: str
    kv_budget: Union[str, int, float]
    device_memory: Union[str, int, float]
    host_memory: Union[str, int, float]
    profile: Union[str, os.PathLike[str]]
    sink: Union[str, int, float]
    recent: Union[str, int, float]
    prefill: str
    prefill_mass: Union[str, int, float]
    measure_recall: bool
    carry: Union[str, int, float]
    thresholds: str
    keep: Union[str, int, float]
    eta: Union[str, int, float]
    p: Union[str, int, float]
    aggregation: str
    slots: Union[str, int, float]
    delta: bool
    prefetch: Union[str, int, float]
    verify: bool
    prediction_eta: Union[str, int, float]
    prediction_margin: Union[str, int, float]
    resident_heads: Union[str, int, float]
    resident_first_layer: bool
    resident_full: bool
    resident_whole: Union[str, int, float]
    dense_layers: Union[str, int, float]
    epsilon: Union[str, int, float]
    retriever: str
    hata_bits: Union[str, int, float]
    hata_norms: bool
    hata_group: str
    loki_rank: Union[str, int, float]
    host_rows: str
    transfer: str
    transfer_threads: Union[str, int, float]
    batch_groups: Union[str, int, float]
    kvpr_split: Union[str, int, float]
    kvpr_chunked: bool


class Options(KvOptions, total=False):
    """Options of the engine; litecache_llm.options() describes them."""

    device: str
    threads: Union[str, int, float]
    tensor_parallel: Union[str, int, float]
    memory: Union[str, int, float]
    max_context: Union[str, int, float]
    weights_on_device: Union[str, int, float]
    experts_on_device: Union[str, int, float]
    dtype: str
    quantize: str
    max_batch: Union[str, int, float]
    prefill_chunk: Union[str, int, float]
    deterministic: bool
    draft: str
    draft_tokens: Union[str, int, float]
    exact: bool
    data_parallel: Union[str, int, float]
    prefill_chunk_beside: Union[str, int, float]
    prefix_cache: bool
    prefix_store: Union[str, os.PathLike[str]]
    prefix_store_size: Union[str, int, float]
    show_progress: bool

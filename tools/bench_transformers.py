#!/usr/bin/env python3
"""Measures the speed of Hugging Face Transformers on a published shape with random weights, in bf16 with
SDPA, to compare `litecache bench` with on the same GPU. Needs torch and transformers (5 or newer).

    tools/bench_transformers.py --shape llama3.1-8b --context 8k,32k --batch 1
    tools/bench_transformers.py --caches full,offloaded --context 32k --only decode
    tools/bench_transformers.py --shape opt-6.7b --batch 64 --context 128 --caches offloaded --generate 32

full: every layer's KV is on the GPU (DynamicCache). offloaded: in host memory, fetched one layer ahead
(DynamicCache with offloading). Prints one JSON object per measurement, with the field names of
`litecache bench --json`. Times are medians; the cache of a decode measurement contains random rows,
stored by the cache's own update(), without a prompt.

--generate N: measures whole generations instead, as a user runs them: a new cache, the prompts together,
then N steps; --repeats sets how often, one after another.

An offloaded cache pins new host memory for every layer whose rows outgrow it, which takes seconds
for tens of GiB: several threads touch it (PINNED), and --seconds ends a measurement that takes too
long, keeping the steps done until then.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time

# torch reads this when it is imported.
PINNED = "pinned_use_cuda_host_register:True,pinned_num_register_threads:16"
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", PINNED)

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, OPTConfig

# hidden, intermediate, layers, query heads, KV heads, vocabulary (as src/model/shapes.cc)
SHAPES = {
    "llama3.2-1b": (2048, 8192, 16, 32, 8, 128256),
    "llama3.2-3b": (3072, 8192, 28, 24, 8, 128256),
    "llama3-8b": (4096, 14336, 32, 32, 8, 128256),
    "llama3.1-8b": (4096, 14336, 32, 32, 8, 128256),
    "llama2-7b": (4096, 11008, 32, 32, 32, 32000),
    "opt-6.7b": (4096, 16384, 32, 32, 32, 50272),
    "opt-13b": (5120, 20480, 40, 40, 40, 50272),
}
WARM_UP = 2


def tokens(text):
    unit = {"k": 1024, "m": 1024 * 1024}.get(text[-1:].lower())
    return int(text[:-1]) * unit if unit else int(text)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama3.1-8b")
    parser.add_argument("--context", default="8k,32k", help="tokens, comma-separated")
    parser.add_argument("--batch", default="1", help="sequences, comma-separated")
    parser.add_argument("--caches", default="full", help="full, offloaded, comma-separated")
    parser.add_argument("--only", choices=["prefill", "decode"])
    parser.add_argument("--steps", type=int, default=16, help="decode steps timed")
    parser.add_argument("--seconds", type=float, default=1e9,
                        help="a decode measurement takes no step after so many")
    parser.add_argument("--repeats", type=int, default=2, help="prefills timed; generations")
    parser.add_argument("--generate", type=int, default=0, metavar="N",
                        help="measure generations of a prompt and N new tokens instead")
    parser.add_argument("--prefill-chunk", type=int, default=0,
                        help="tokens a prompt is processed at a time; 0: all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.caches = options.caches.split(",")
    unknown = set(options.caches) - {"full", "offloaded"}
    if unknown:
        parser.error(f"--caches: {', '.join(sorted(unknown))} is not full or offloaded")
    options.context = [tokens(word) for word in options.context.split(",")]
    options.batch = [int(word) for word in options.batch.split(",")]
    return options


class Bench:
    def __init__(self, options):
        self.options = options
        hidden, intermediate, layers, q_heads, self.kv_heads, vocab = SHAPES[options.shape]
        common = dict(
            hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=q_heads,
            vocab_size=vocab,
            max_position_embeddings=max(options.context) + max(options.steps + WARM_UP,
                                                               options.generate) + 1)
        if options.shape.startswith("opt-"):
            self.config = OPTConfig(**common, ffn_dim=intermediate, word_embed_proj_dim=hidden,
                                    dropout=0.0)
        else:
            self.config = LlamaConfig(**common, intermediate_size=intermediate,
                                      num_key_value_heads=self.kv_heads, tie_word_embeddings=False)
        torch.manual_seed(options.seed)
        with torch.device(options.device):
            self.model = AutoModelForCausalLM.from_config(
                self.config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()

    def synchronize(self):
        if self.options.device.startswith("cuda"):
            torch.cuda.synchronize()

    def cache(self, kind):
        return DynamicCache(config=self.config, offloading=kind == "offloaded")

    def ids(self, batch, count):
        return torch.randint(self.config.vocab_size, (batch, count), device=self.options.device)

    def fill(self, cache, batch, count, deadline):
        shape = (batch, self.kv_heads, count,
                 self.config.hidden_size // self.config.num_attention_heads)
        for layer in range(self.config.num_hidden_layers):
            if time.perf_counter() > deadline:
                raise TimeoutError(f"--seconds: {layer} layers' rows are in place")
            rows = [torch.randn(shape, dtype=torch.bfloat16, device=self.options.device)
                    for _ in range(2)]
            cache.update(*rows, layer)

    def report(self, kind, **fields):
        memory = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
        print(json.dumps({"system": f"transformers {transformers.__version__}",
                          "shape": self.options.shape, "policy": kind, **fields,
                          "device_memory_bytes": memory}), flush=True)

    def prefill(self, kind, context):
        chunk = self.options.prefill_chunk or context
        times = []
        for _ in range(self.options.repeats + 1):
            ids = self.ids(1, context)
            cache = self.cache(kind)
            self.synchronize()
            start = time.perf_counter()
            for first in range(0, context, chunk):
                self.model(ids[:, first:first + chunk], past_key_values=cache, use_cache=True,
                           logits_to_keep=1)
            self.synchronize()
            times.append(time.perf_counter() - start)
        seconds = statistics.median(times[1:] or times)
        self.report(kind, context=context, tokens_per_s=context / seconds, seconds=seconds)

    def decode(self, kind, batch, context):
        begin = time.perf_counter()
        deadline = begin + self.options.seconds
        cache = self.cache(kind)
        self.fill(cache, batch, context, deadline)
        self.synchronize()
        fill = time.perf_counter() - begin
        times = []
        cpu = 0.0
        for step in range(self.options.steps + WARM_UP):
            if step > 0 and time.perf_counter() > deadline:
                break
            ids = self.ids(batch, 1)
            self.synchronize()
            if step == WARM_UP:
                cpu = cpu_seconds()
            start = time.perf_counter()
            self.model(ids, past_key_values=cache, use_cache=True)
            self.synchronize()
            times.append(time.perf_counter() - start)
        timed = times[WARM_UP:]
        seconds = statistics.median(timed or times)
        self.report(kind, batch=batch, context=context, ms_per_step=seconds * 1e3,
                    tokens_per_s=batch / seconds,
                    cpu_seconds_per_step=(cpu_seconds() - cpu) / len(timed) if timed else None,
                    step_ms=[round(t * 1e3, 1) for t in times], fill_seconds=round(fill, 1))

    def generate(self, kind, batch, context):
        deadline = time.perf_counter() + self.options.seconds
        for repeat in range(self.options.repeats):
            ids = self.ids(batch, context)
            cache = self.cache(kind)
            self.synchronize()
            times = [time.perf_counter()]
            for step in range(self.options.generate + 1):
                self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                self.synchronize()
                times.append(time.perf_counter())
                ids = self.ids(batch, 1)
                if times[-1] > deadline:
                    break
            steps = [after - before for before, after in zip(times[1:], times[2:])]
            if not steps:
                raise TimeoutError("--seconds: a prompt took longer")
            self.report(kind, batch=batch, context=context, generation=repeat,
                        new_tokens=len(steps), prompts_s=times[1] - times[0],
                        all_steps_s=sum(steps),
                        tokens_per_s=batch * len(steps) / (times[-1] - times[0]),
                        ms_per_step=statistics.median(steps) * 1e3,
                        step_ms=[round(t * 1e3, 1) for t in steps])
            if times[-1] > deadline:
                break


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    options = parse()
    bench = Bench(options)
    with torch.inference_mode():
        for kind in options.caches:
            for context in options.context:
                cells = []
                if options.generate > 0:
                    cells = [(bench.generate, (kind, batch, context)) for batch in options.batch]
                elif options.only != "decode":
                    cells = [(bench.prefill, (kind, context))]
                if options.generate == 0 and options.only != "prefill":
                    cells += [(bench.decode, (kind, batch, context)) for batch in options.batch]
                for measure, arguments in cells:
                    try:
                        measure(*arguments)
                    except (torch.cuda.OutOfMemoryError, TimeoutError) as error:
                        print(f"{measure.__name__} {arguments}: {error}", file=sys.stderr)
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()
                        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What generating from Python costs: LLM.generate() beside the same requests to the same library from C++.

    tools/llm_overhead.py --model models/litecache-demo-16m
    tools/llm_overhead.py --model DIR --batch 1,64 --threads 2
    tools/llm_overhead.py --shape llama3.1-8b --device cuda       # random weights

Both run by turns, every turn with new prompts of random ids, and generate greedily with nothing kept from earlier turns. Prints tokens a
second, prompts' processing included, as medians over the turns, and the median of the turns' ratios. Without --library and --program
they are those of build/release. Needs only Python. Exits with 1 below --required of C++'s speed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def ids(count, state):
    """The ids that examples/engine_throughput.cc has, and the state after them."""
    made = []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        made.append(10 + (state >> 16) % 400)
    return made, state


class Cpp:
    """The engine from C++, in a process of its own."""

    def __init__(self, program, settings):
        command = [str(program), *(f"{name.replace('_', '-')}={value}" for name, value in settings.items())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n", "the program did not start"

    def seconds(self, prompt, tokens, seed, requests):
        print(prompt, tokens, seed, requests, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Python:
    def __init__(self, settings):
        from litecache_llm import LLM
        self.llm = LLM(**settings)

    def seconds(self, prompt, tokens, seed, requests):
        from litecache_llm import SamplingParams
        prompts = []
        for _ in range(requests):
            one, seed = ids(prompt, seed)
            prompts.append(one)
        start = time.perf_counter()
        outputs = self.llm.generate(prompts, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True))
        took = time.perf_counter() - start
        assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
        return took

    def close(self):
        self.llm.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model")
    what.add_argument("--shape")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--max-context", type=int, default=1024)
    parser.add_argument("--device-memory", type=int, default=32 << 30, help="bytes of a GPU for each of both")
    parser.add_argument("--batch", default="1,64")
    parser.add_argument("--prompt", type=int, default=32, help="tokens")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of each request")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--required", type=float, default=0.97)
    parser.add_argument("--library", default=ROOT / "build/release/liblitecache.so")
    parser.add_argument("--program", default=ROOT / "build/release/examples/engine_throughput")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    os.environ["LITECACHE_LIBRARY"] = str(Path(options.library).resolve())
    sys.path.insert(0, str(ROOT / "python"))
    settings = {"device": options.device, "threads": options.threads, "max_context": options.max_context}
    settings.update({"model": options.model} if options.model else {"shape": options.shape})
    # Both are loaded all the time, so that neither pays for starting.
    if options.device.startswith("cuda"):
        settings["device_memory"] = options.device_memory
    sides = {"C++": Cpp(options.program, settings), "Python": Python(settings)}
    results, good = [], True
    for batch in map(int, options.batch.split(",")):
        speed = {name: [] for name in sides}
        for turn in range(options.turns + 1):
            # In every other turn Python is first.
            for name in list(sides)[::1 if turn % 2 else -1]:
                took = sides[name].seconds(options.prompt, options.tokens, 1000 * batch + turn, batch)
                if turn > 0:  # the first one warms up
                    speed[name].append(batch * options.tokens / took)
        ratio = statistics.median(p / c for p, c in zip(speed["Python"], speed["C++"]))
        good = good and ratio >= options.required
        results.append({"batch": batch, **{name: statistics.median(values) for name, values in speed.items()}, "ratio": ratio})
        if not options.json:
            print(f"batch {batch:3}: C++ {results[-1]['C++']:9.1f} tokens/s, Python {results[-1]['Python']:9.1f}, ratio {ratio:.3f}",
                  flush=True)
    if options.json:
        print(json.dumps(results))
    for side in sides.values():
        side.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

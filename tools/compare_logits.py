#!/usr/bin/env python3
"""Compares the next-token distributions of two sets of options of `litecache logits`.

    tools/compare_logits.py build/release/litecache --model DIR --text FILE [--tokens N] -- OPTIONS -- OPTIONS [-- ...]

For example, what 4-bit weights change: -- --dtype f32 -- --quantize q4_k. The first set is the reference. Prints, for each
other one, the divergence from it (KL, in nats) on average and its 99th percentile, the share of positions with the same most
likely token, and the perplexity of the text to that of the reference. A set may name another --model with the same tokens.
Needs numpy.
"""
import argparse
import json
import subprocess
import sys
import tempfile

import numpy as np


def run(*command):
    result = subprocess.run(command, text=True, capture_output=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command[:2])}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def log_probabilities(program, model, ids_file, options):
    named = [] if "--model" in options else ["--model", model]
    shown = run(program, "logits", *named, "--tokens-file", ids_file, "--positions", "all", "--json", *options)
    logits = np.array(shown["logits"])
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def main():
    own, *sets = " ".join(sys.argv[1:]).split(" -- ")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--tokens", type=int, default=1024, help="of the text's beginning (default: 1024)")
    arguments = parser.parse_args(own.split())
    if len(sets) < 2:
        parser.error("two sets of options are needed, each after --")
    with open(arguments.text, encoding="utf-8") as file:
        text = file.read(arguments.tokens * 8)
    ids = run(arguments.program, "tokenize", "--model", arguments.model, "--json", text)["ids"][:arguments.tokens]
    with tempfile.NamedTemporaryFile("w", suffix=".ids") as ids_file:
        ids_file.write(" ".join(map(str, ids)))
        ids_file.flush()
        of = [log_probabilities(arguments.program, arguments.model, ids_file.name, options.split()) for options in sets]
    reference = of[0]
    follows = np.arange(len(ids) - 1)
    print(f"{len(ids)} tokens; reference: {sets[0]}")
    for options, values in zip(sets[1:], of[1:]):
        divergence = (np.exp(reference) * (reference - values)).sum(-1)
        same = (reference.argmax(-1) == values.argmax(-1)).mean()
        loss = (reference[follows, ids[1:]] - values[follows, ids[1:]]).mean()
        print(f"{options}: KL {divergence.mean():.2g}, p99 {np.quantile(divergence, 0.99):.2g}, same top {100 * same:.1f}%, "
              f"perplexity {100 * (np.exp(loss) - 1):+.2f}%")


if __name__ == "__main__":
    main()

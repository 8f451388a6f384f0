#!/usr/bin/env python3
"""Whether answers with drafts are those of full attention, token by token, and what the drafts bring.

    tools/exact_check.py MODEL TEXT... [--context 4000] [--tokens 256] [--count 20] [--batch 4] [--draft lookup,sparse]
        [--draft-tokens 16,8,4] [--dtype f32] [--device cpu] [--temperature 0] [--option kv_budget=5%]...

MODEL: a directory or a GGUF file. Prompts are passages of the texts at random places (--seed), of `context` tokens. Each is
continued with policy full, and with policy litecache and exact=true for every number of --draft-tokens: greedily, or sampled with the same seeds. Prints for each
the answers that differ and, at their first different token, by how much policy full prefers its own (log-probabilities): two
tokens within rounding are a tie. Then how many tokens were drafted and accepted, and milliseconds a token. Exits with 1 if an
answer differs by more than a tie: 1e-3 in f32, 0.25 in bf16.

Uses the package litecache_llm: `make wheel`, or LITECACHE_LIBRARY=build/release/liblitecache.so PYTHONPATH=python.
"""
import argparse
import random
import sys
import time

from litecache_llm import LLM, SamplingParams

TIES = {"f32": 1e-3, "bf16": 0.25}


def prompts_of(llm, paths, arguments):
    ids = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            ids.append(llm.tokenize(file.read()))
    ids = [one for one in ids if len(one) > arguments.context]
    if not ids:
        sys.exit(f"exact_check: no text has more than {arguments.context} tokens; give longer ones, or a smaller --context")
    places = random.Random(arguments.seed)
    passages = []
    for _ in range(arguments.count):
        text = places.choice(ids)
        at = places.randrange(len(text) - arguments.context)
        passages.append(text[at:at + arguments.context])
    return passages


def answers_of(llm, prompts, arguments):
    """The answers, and the seconds of decoding a token of all of them."""
    params = SamplingParams(temperature=arguments.temperature, seed=arguments.seed, max_tokens=arguments.tokens,
                            ignore_eos=True, logprobs=5)
    outputs, seconds = [], 0.0
    for begin in range(0, len(prompts), arguments.batch):
        batch = llm.generate(prompts[begin:begin + arguments.batch], params)
        seconds += max(answer.timings["predicted_ms"] for answer in batch) / 1e3
        outputs += [answer.outputs[0] for answer in batch]
        print(f"\r{len(outputs)} of {len(prompts)} answers", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
    return outputs, seconds


def gap(expected, answer):
    """By how much the expected answer's model prefers its token to the other's at the first difference; None: they are equal."""
    for i, (own, other) in enumerate(zip(expected.token_ids, answer.token_ids)):
        if own == other:
            continue
        own_logprob = expected.logprobs["token_logprobs"][i]
        known = answer.logprobs["tokens"][i]
        other_logprob = expected.logprobs["top_logprobs"][i].get(known)
        return i, float("inf") if other_logprob is None else own_logprob - other_logprob
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--context", type=int, default=4000)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--draft", default="lookup,sparse")
    parser.add_argument("--draft-tokens", default="16")
    parser.add_argument("--dtype", default="f32", choices=TIES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of litecache_llm.LLM, for policy litecache")
    arguments = parser.parse_args()
    common = {"max_context": arguments.context + arguments.tokens, "dtype": arguments.dtype,
              "device": arguments.device, "threads": arguments.threads}
    with LLM(arguments.model, kv_policy="full", **common) as llm:
        prompts = prompts_of(llm, arguments.texts, arguments)
        expected, seconds = answers_of(llm, prompts, arguments)
    tokens = arguments.tokens * len(prompts)
    print(f"{arguments.model}: {len(prompts)} passages of {arguments.context} tokens, {arguments.tokens} tokens each, "
          f"{arguments.dtype}, {arguments.batch} at a time")
    print(f"full: {1e3 * seconds * arguments.batch / tokens:.2f} ms a token of each")
    far = False
    for most in arguments.draft_tokens.split(","):
        options = dict(option.split("=", 1) for option in arguments.option)
        with LLM(arguments.model, kv_policy="litecache", exact=True, draft=arguments.draft, draft_tokens=most, **options,
                 **common) as llm:
            answers, seconds = answers_of(llm, prompts, arguments)
            drafts = llm.stats()["drafts"]
        gaps = [(prompt, *found) for prompt, pair in enumerate(zip(expected, answers)) if (found := gap(*pair)) is not None]
        print(f"drafts of up to {most}: {1e3 * seconds * arguments.batch / tokens:.2f} ms a token of each; "
              f"drafted {drafts['drafted']}, accepted {drafts['accepted']} "
              f"({100 * drafts['accepted'] / max(drafts['drafted'], 1):.1f}%), {1 + drafts['accepted'] / max(drafts['passes'], 1):.2f} tokens a pass; "
              f"{tokens} tokens, {len(gaps)} of {len(prompts)} answers differ")
        for prompt, at, difference in gaps:
            print(f"  answer {prompt} differs from token {at} on, where full prefers its own by {difference:.5f}")
            far = far or difference > TIES[arguments.dtype]
    sys.exit(1 if far else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""How long drafting and verifying take at a published shape, and what that makes of a token by the share that is accepted.

    tools/draft_passes.py PROGRAM [--shape llama3.1-8b] [--context 130800] [--draft-tokens 8,16,32] [--tokens 200] [--streams 1]
        [--device cuda] [-- OPTIONS OF SERVE, by default --kv-policy litecache --exact --draft sparse]

Starts `litecache serve` with random weights for every number of drafted tokens and lets each step draft as many
(LITECACHE_DRAFT_ALWAYS=1). With 0, and options that do not draft, a pass is a token. Prompts are computed and kept first,
then all streams decode at once, and the time of their answers is divided by their passes. Random weights accept what they
accept; a pass takes as long as with others. The table supposes that each token is accepted with the same probability a, given
that those before it are: a pass with k drafts then gives (1 - a^(k+1)) / (1 - a) tokens a stream; times are those of a
stream's token.

Needs only Python.
"""
import argparse
import concurrent.futures
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ACCEPTED = (0.7, 0.8, 0.9, 0.95, 0.98)


def ask(port, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read())


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until_it_serves(server, port, log):
    while True:
        try:
            return ask(port, "/stats")
        except (urllib.error.URLError, ConnectionError):
            if server.poll() is not None:
                log.seek(0)
                sys.exit("draft_passes: the server has ended:\n" + log.read())
            time.sleep(0.2)


def measure(arguments, drafted):
    """Milliseconds a pass, drafts a pass and stream, and the share accepted, with up to `drafted` drafts in a step."""
    port = free_port()
    words = [arguments.program, "serve", "--port", str(port), "--shape", arguments.shape, "--device", arguments.device,
             "--max-batch", str(arguments.streams), *arguments.options]
    words += ["--draft-tokens", str(drafted)] if drafted > 0 else []
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "LITECACHE_DRAFT_ALWAYS": "1"})
        try:
            wait_until_it_serves(server, port, log)
            ids = random.Random(arguments.seed)
            prompts = [[ids.randrange(1000, 30000) for _ in range(arguments.context)] for _ in range(arguments.streams)]

            def answer(prompt, tokens):
                return ask(port, "/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                                     "ignore_eos": True, "timings_per_token": True})["timings"]

            for prompt in prompts:
                answer(prompt, 1)
            before = ask(port, "/stats")["drafts"]
            with concurrent.futures.ThreadPoolExecutor(arguments.streams) as streams:
                times = [one["predicted_ms"] for one in streams.map(lambda prompt: answer(prompt, arguments.tokens), prompts)]
            after = ask(port, "/stats")["drafts"]
        finally:
            server.terminate()
            server.wait()
    made, accepted = (after[name] - before[name] for name in ("drafted", "accepted"))
    # Without drafts a pass is a token.
    passes = (after["passes"] - before["passes"]) or arguments.streams * (arguments.tokens - 1)
    return sum(times) / passes, made / passes, accepted / max(1, made)


def main():
    own, options = sys.argv[1:], ["--kv-policy", "litecache", "--exact", "--draft", "sparse"]
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the program litecache")
    parser.add_argument("--shape", default="llama3.1-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--context", type=int, default=130800)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--draft-tokens", default="8,16,32")
    parser.add_argument("--seed", type=int, default=5)
    arguments = parser.parse_args(own)
    arguments.options = options
    header = ["drafts a pass", "ms a pass", "accepted here", *(f"{a:.0%}" for a in ACCEPTED)]
    print(f"{arguments.shape}, {arguments.streams} x {arguments.context} tokens, {' '.join(options)}; "
          "ms a token by the share accepted\n")
    print("| " + " | ".join(header) + " |\n" + "| --- " * len(header) + "|")
    for drafted in (int(one) for one in arguments.draft_tokens.split(",")):
        pass_ms, made, share = measure(arguments, drafted)
        tokens = [(1 - a ** (made + 1)) / (1 - a) for a in ACCEPTED]
        cells = [f"{made:.1f}", f"{pass_ms:.1f}", f"{share:.0%}", *(f"{pass_ms / count:.1f}" for count in tokens)]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

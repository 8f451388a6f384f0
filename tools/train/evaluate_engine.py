"""Scores a model on retrieval tasks with the litecache program itself, on this machine's CPU."""

import argparse
import json
import pathlib
import subprocess
import tempfile

from evaluate import score


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--litecache", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--length", required=True, help="e.g. 16k")
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()
    for task in args.tasks:
        tokenizer = str(pathlib.Path(args.model) / "tokenizer.json")
        command = [args.litecache, "eval", "generate", "--task", task, "--length", args.length, "--seed", "42",
                   "--count", str(args.count), "--split", "test", "--tokenizer", tokenizer]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        total = 0.0
        for sample in map(json.loads, lines):
            with tempfile.TemporaryDirectory() as folder:
                prompt = pathlib.Path(folder) / "prompt.txt"
                prompt.write_text(sample["input"])
                made = subprocess.run(
                    [args.litecache, "generate", "--model", args.model, "--prompt-file", str(prompt), "--quiet",
                     "--temperature", "0", "--max-tokens", str(sample["max_new_tokens"]), "--json"],
                    check=True, capture_output=True, text=True)
            total += score(json.loads(made.stdout)["text"], sample["outputs"])
        print(f"{task:16} {args.length:>5} {100 * total / len(lines):6.1f}  ({len(lines)} prompts)", flush=True)


if __name__ == "__main__":
    main()

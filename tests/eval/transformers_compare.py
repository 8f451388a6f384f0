"""Compares the predictions of `litecache eval run` with Transformers' greedy output, tokenizer and
chat template included: the same samples, the same model, both in f32. Needs torch and transformers.

  python tests/eval/transformers_compare.py --litecache build/release/litecache --model models/litecache-demo-16m
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

# Two choices closer than this count as equal: the rounding of f32 sums over thousands of tokens decides between them.
TIE = 2e-3


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def prompt_ids(tokenizer, sample, chat):
    prefix = sample["answer_prefix"]
    text = sample["input"]
    if not chat:
        return tokenizer(text)["input_ids"]
    if prefix and text.endswith(prefix):
        text = text[: -len(prefix)]
    ids = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                        tokenize=False)
    ids = tokenizer(ids, add_special_tokens=False)["input_ids"]
    return ids + (tokenizer(prefix, add_special_tokens=False)["input_ids"] if prefix else [])


def greedy(model, ids, max_new_tokens):
    with torch.no_grad():
        out = model.generate(torch.tensor([ids], device=model.device), do_sample=False, max_new_tokens=max_new_tokens,
                             output_logits=True, return_dict_in_generate=True)
    gaps = []
    for logits in out.logits:
        top = torch.topk(logits[0].float(), 2).values
        gaps.append((top[0] - top[1]).item())
    return out.sequences[0, len(ids):].tolist(), gaps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litecache", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tasks", default="niah_single_1,niah_multikey_2,niah_multivalue,vt,fwe")
    parser.add_argument("--lengths", default="1k,4k")
    parser.add_argument("--count", default="1", help="samples a task and length")
    parser.add_argument("--seed", default="42")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(args.device).eval()
    different = ties = compared = 0
    with tempfile.TemporaryDirectory() as folder:
        for length in args.lengths.split(","):
            samples = pathlib.Path(folder) / f"{length}.jsonl"
            samples.write_text(run([args.litecache, "eval", "generate", "--model", args.model, "--task", args.tasks,
                                    "--length", length, "--count", args.count, "--seed", args.seed]))
            lines = {f"{s['task']}/{s['index']}": s for s in map(json.loads, samples.read_text().splitlines())}
            for chat in (False, True):
                results = pathlib.Path(folder) / f"{length}-{chat}.jsonl"
                run([args.litecache, "eval", "run", "--suite", samples, "--model", args.model, "--policies", "full",
                     "--dtype", "f32", "--json", results] + (["--chat"] if chat else []))
                records = [r for r in map(json.loads, results.read_text().splitlines()) if r["type"] == "prediction"]
                assert len(records) == len(lines), f"{len(records)} predictions of {len(lines)} samples"
                for record in records:
                    sample = lines[record["id"]]
                    ids = prompt_ids(tokenizer, sample, chat)
                    name = f"{record['id']} {length}{' chat' if chat else ''}"
                    compared += 1
                    if record["prompt_tokens"] != len(ids):
                        different += 1
                        print(f"{name}: {record['prompt_tokens']} prompt tokens, Transformers {len(ids)}")
                        continue
                    tokens, gaps = greedy(model, ids, sample["max_new_tokens"])
                    text = tokenizer.decode(tokens, skip_special_tokens=True)
                    if text == record["prediction"]:
                        continue
                    if min(gaps) < TIE:
                        ties += 1
                        print(f"{name}: differs, and two choices were {min(gaps):.2e} apart")
                        continue
                    different += 1
                    print(f"{name}:\n  litecache    {record['prediction']!r}\n  Transformers {text!r}")
            print(f"{length}: {compared} compared so far, {different} different, {ties} ties", flush=True)
    sys.exit(1 if different or compared == 0 else 0)


if __name__ == "__main__":
    main()

"""Makes all input of training and evaluation: code tokens, retrieval rows, test prompts.

Runs in worker processes and writes each part as soon as it is done, so that training can begin with the
first stage while later ones are still being made.
"""

import argparse
import json
import multiprocessing
import pathlib
import subprocess
import time

import numpy as np
from tokenizers import Tokenizer

import documents
import recipe

STATE = {}


def setup(args):
    STATE["args"] = args
    STATE["tokenizer"] = Tokenizer.from_file(str(args.tokenizer))
    STATE["vocabulary"] = documents.Vocabulary(STATE["tokenizer"])


def encode_code(texts):
    """Tokens of documents, each followed by the end token."""
    eos = STATE["vocabulary"].eos
    parts = []
    for text in texts:
        parts += [STATE["tokenizer"].encode(text, add_special_tokens=False).ids, [eos]]
    return np.concatenate([np.array(p, np.uint16) for p in parts])


def pieces_of(texts, size=400_000):
    """Documents grouped (or, if huge, cut at a line) into jobs of about `size` characters."""
    job, total = [], 0
    for text in texts:
        while len(text) > 2 * size:
            cut = text.rfind("\n", 0, size) + 1 or size
            yield [text[:cut]]
            text = text[cut:]
        job.append(text)
        total += len(text)
        if total > size:
            yield job
            job, total = [], 0
    if job:
        yield job


def generate(job):
    """One file of packed rows: the generator's documents, rewritten and packed."""
    stage_index, number, code_haystack, tokens, full = job
    args, v = STATE["args"], STATE["vocabulary"]
    stage = recipe.RECIPES[args.recipe][stage_index]
    name = args.output / f"stage{stage_index}_{number}"
    if pathlib.Path(f"{name}.npz").exists():
        return stage_index, 0
    seed = args.seed + 1000 * stage_index + number
    rng = np.random.default_rng(seed)
    tasks = dict(recipe.CODE_TASKS if code_haystack else recipe.NOISE_TASKS)
    longest = stage.length - 48  # room for end tokens and chat turns
    # Nearly full rows, as in the test, or lengths spread evenly on a log scale.
    shortest = int(0.92 * longest) if full else stage.shortest
    if "cwe" in tasks and longest >= recipe.CWE_LARGE_FORM:
        shortest = max(shortest, recipe.CWE_LARGE_LEAST)
    tasks = {t: w for t, w in tasks.items() if shortest >= recipe.LEAST_TOKENS.get(t, 0)}
    mean = (longest - shortest) / np.log(longest / shortest)
    raw = args.output / f"raw{stage_index}_{number}"
    command = [args.generator, "--bulk", "--tasks", ",".join(f"{t}:{w}" for t, w in tasks.items()),
               "--length", f"{shortest}:{longest}", "--count", str(max(8, int(tokens / mean))),
               "--seed", str(seed), "--split", "train", "--questions", str(stage.questions),
               "--tokenizer", str(args.tokenizer), "--format", "tokens", "--threads", "1", "--output", str(raw)]
    if code_haystack:
        command += ["--haystack", str(args.data / f"haystack{number % 8}.txt"), "--haystack-pieces", "lines"]
    if subprocess.run(command).returncode:
        return stage_index, 0
    rewriter = documents.Rewriter(v, code_haystack, rng)
    made = [rewriter.rewrite(ids, classes, rng.random() < recipe.CHAT_SHARE, rng.random() < recipe.HEADLESS_SHARE)
            for ids, classes in documents.read_documents(raw)]
    raw.unlink()
    code = np.load(args.output / "code.npy", mmap_mode="r")
    rows, weights = documents.pack(made, stage.length, code, v, rng)
    np.savez(f"{name}.tmp.npz", rows=rows, weights=weights)
    pathlib.Path(f"{name}.tmp.npz").rename(f"{name}.npz")
    return stage_index, rows.size


def make_prompts(job):
    task, length = job
    args = STATE["args"]
    command = [args.generator, "--task", task, "--length", str(length), "--count", str(args.prompts), "--seed", "42",
               "--split", "test", "--tokenizer", str(args.tokenizer), "--threads", "1",
               "--output", str(args.output / f"prompts_{task}_{length}.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"no prompts of {task} at {length}: {done.stderr.strip()}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder that sources.py wrote")
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path)
    parser.add_argument("--generator", required=True, help="the litecache-ruler program")
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--recipe", default="first")
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--prompts", type=int, default=50, help="test prompts for each task and length")
    parser.add_argument("--workers", type=int, default=14)
    args = parser.parse_args()
    begin = time.time()
    args.output.mkdir(parents=True, exist_ok=True)
    train = json.loads((args.data / "train.json").read_text())
    held = json.loads((args.data / "held_out.json").read_text())
    # Eight haystack files: a worker reads one of them, not the whole collection. Only lines of ASCII, because the
    # generator counts bytes and the tokenizer's normalizer can change other characters.
    for i in range(8):
        lines = "\n".join(train[i::8]).split("\n")
        (args.data / f"haystack{i}.txt").write_text("\n".join(line for line in lines if line.isascii()))
    with multiprocessing.Pool(args.workers, setup, (args,)) as pool:
        if not (args.output / "code.npy").exists():
            code = np.concatenate(pool.map(encode_code, pieces_of(train), chunksize=1))
            np.save(args.output / "code.tmp.npy", code)
            (args.output / "code.tmp.npy").rename(args.output / "code.npy")
            held_jobs = [job for texts in held.values() for job in pieces_of(texts)]
            np.save(args.output / "held_out.npy", np.concatenate(pool.map(encode_code, held_jobs, chunksize=1)))
            print(f"{len(code) / 1e6:.1f}M code tokens after {time.time() - begin:.0f} s", flush=True)
        jobs = []
        for index, stage in enumerate(recipe.RECIPES[args.recipe]):
            parts = max(4, int(stage.retrieval_tokens / 5))
            parts += -parts % 4
            jobs += [(index, n, n % 2 == 0, stage.retrieval_tokens * 1e6 / parts, n % 4 < 2) for n in range(parts)]
        ready = {}
        for index, size in pool.imap_unordered(generate, jobs, chunksize=1):
            ready[index] = ready.get(index, 0) + size
        print(f"retrieval tokens by stage {ready} after {time.time() - begin:.0f} s", flush=True)
        (args.output / "ready").touch()
        lengths = [n for n in recipe.EVALUATION_LENGTHS if args.recipe != "tiny" or n <= 1024]
        pool.map(make_prompts, [(t, n) for n in lengths for t in recipe.ALL_TASKS], chunksize=1)
    (args.output / "prompts_ready").touch()
    print(f"test prompts after {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()

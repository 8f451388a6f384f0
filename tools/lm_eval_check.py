"""Scores of lm-evaluation-harness through `litecache serve` and through Transformers, side by side.

usage: lm_eval_check.py PROGRAM MODEL_DIRECTORY [--text FILE] [--limit N]

Makes three tasks from a text: a choice between four continuations (log-likelihoods), the text's perplexity (rolling
log-likelihoods), and short greedy continuations. The harness runs each against the server (its model local-completions)
and in this process (its model hf), both in f32 on the CPU; nothing is downloaded. Prints both, and exits with 1 where
they differ. Needs `pip install "lm-eval[api]" torch transformers accelerate`, which the test suite does without.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import lm_eval
import lm_eval.tasks

# Sums of log-probabilities over some 60 tokens, in f32 on both sides.
TOLERANCE = 2e-3

TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: choices
doc_to_target: label
target_delimiter: ""
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{page}}"
metric_list: [{metric: bits_per_byte}, {metric: byte_perplexity}]
""",
    "continue": """
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{target}}"
target_delimiter: ""
generation_kwargs: {until: ["\\n"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


def make_documents(text, limit):
    """Choices between the line that follows and three from elsewhere, and pages of the text."""
    lines = [line for line in text.splitlines() if len(line.strip()) > 8]
    documents = []
    for i in range(12, len(lines) - 40, max(1, (len(lines) - 52) // limit)):
        choices = [lines[i], lines[i + 13], lines[i + 29], lines[i - 7]]
        shift = i % 4
        documents.append({"context": "\n".join(lines[i - 12:i]) + "\n", "target": lines[i],
                          "choices": choices[shift:] + choices[:shift], "label": -shift % 4,
                          "page": "\n".join(lines[i:i + 12])})
    return documents[:limit]


def write_tasks(directory, documents):
    data = directory / "data.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    for name, fields in TASKS.items():
        (directory / f"{name}.yaml").write_text(
            f"task: litecache_{name}\ndataset_path: json\ndataset_kwargs:\n"
            f"  data_files: {{test: {data}}}\n  cache_dir: {directory}/cache\ntest_split: test\n{fields}")


def evaluate(directory, model, arguments):
    tasks = lm_eval.tasks.TaskManager(include_path=str(directory), include_defaults=False)
    return lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=[f"litecache_{name}" for name in TASKS],
        task_manager=tasks, log_samples=True, device="cpu", bootstrap_iters=0)


def answers(sample):
    """What the model made of one document: numbers and texts, in the order they were asked for."""
    flat = []
    for item in sample["resps"]:
        while isinstance(item, (list, tuple)) and len(item) == 1:
            item = item[0]
        flat += item if isinstance(item, (list, tuple)) else [item]
    # The harness keeps both as texts in some versions.
    return [float(x) if re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", str(x)) else str(x) for x in flat]


def compare(ours, theirs):
    """Prints the scores and the largest difference of a single answer; returns whether all agree."""
    agree = True
    for name in ours["results"]:
        for metric, value in ours["results"][name].items():
            other = theirs["results"][name][metric]
            if not isinstance(value, float):
                continue
            same = abs(value - other) <= TOLERANCE
            agree = agree and same
            print(f"{name:20} {metric:24} litecache {value:.6f}  transformers {other:.6f}"
                  f"{'' if same else '  DIFFERENT'}")
        worst, texts, count = 0.0, 0, 0
        for a, b in zip(ours["samples"][name], theirs["samples"][name], strict=True):
            for x, y in zip(answers(a), answers(b), strict=True):
                count += 1
                if isinstance(x, float) and isinstance(y, float):
                    worst = max(worst, abs(x - y))
                else:
                    texts += x != y
        print(f"{name:20} {count} answers: the largest difference of a log-likelihood is {worst:.2e}, "
              f"{texts} others differ")
        agree = agree and count > 0 and worst <= TOLERANCE and texts == 0
    return agree


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, help="default: the model's demo/document.txt")
    parser.add_argument("--limit", type=int, default=60, help="documents")
    options = parser.parse_args()
    text = (options.text or options.model / "demo" / "document.txt").read_text()
    server = subprocess.Popen(
        [options.program, "serve", "--model", str(options.model), "--dtype", "f32", "--port", "0"],
        stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r"serving .* at (http\S+)", line):
                break
        else:
            sys.exit("the server did not start")
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            write_tasks(directory, make_documents(text, options.limit))
            ours = evaluate(directory, "local-completions", {
                "model": options.model.resolve().name, "tokenizer": str(options.model.resolve()),
                "tokenizer_backend": "huggingface", "base_url": found.group(1) + "/v1/completions",
                "add_bos_token": True, "batch_size": 4})
            theirs = evaluate(directory, "hf", {
                "pretrained": str(options.model.resolve()), "dtype": "float32", "add_bos_token": True,
                "batch_size": 4})
    finally:
        server.terminate()
        server.wait()
        server.stderr.close()
    sys.exit(0 if compare(ours, theirs) else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compares litecache-ruler with the original generator, task by task.

Runs the scripts of a checkout of NVIDIA/RULER (not part of this repository) and our program with the same tokenizer, haystack and
lengths, and checks that only the random draws differ: the text around the context is equal once words and numbers are masked, the
context has the same lines, the numbers of needles, answers and repeats agree, needle depths have the same distribution, neither exceeds the
length, and ours leaves no more of it unused (to a unit of haystack).

    ruler_compare.py --checkout RULER --program build/litecache-ruler --tokenizer tokenizer.json --essays essays.json

SQuAD and HotpotQA are read from --qa-data; without it, synthetic files in their format are used.

Needs the packages tokenizers, numpy, scipy and wonderwords. nltk's sentence model is replaced by a simple splitter, so sentence borders are
not compared, and english_words.json (a large-file pointer in the checkout) by a list of synthetic words.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

from scipy import stats

SHIMS = {
    "nltk/__init__.py": "",
    "nltk/tokenize.py": "import re\ndef sent_tokenize(text):\n    return [s for s in re.split(r'(?<=[.!?])\\s+', text) if s]\n",
    "tqdm.py": "def tqdm(items, **_):\n    return items\n",
    "manifest_utils.py": "import json\ndef write_manifest(path, rows):\n    open(path, 'w').writelines(json.dumps(r, default=int) + '\\n' for r in rows)\n",
    "tokenizer.py": "from tokenizers import Tokenizer\nclass select_tokenizer:\n    def __init__(self, kind, path):\n"
                    "        self.t = Tokenizer.from_file(path)\n    def text_to_tokens(self, text):\n        return self.t.encode(text).ids\n",
}

TASKS = {
    "niah_single_1": ("niah", "noise words numbers 1 1 1"),
    "niah_single_2": ("niah", "essay words numbers 1 1 1"),
    "niah_single_3": ("niah", "essay words uuids 1 1 1"),
    "niah_multikey_1": ("niah", "essay words numbers 4 1 1"),
    "niah_multikey_2": ("niah", "needle words numbers 1 1 1"),
    "niah_multikey_3": ("niah", "needle uuids uuids 1 1 1"),
    "niah_multivalue": ("niah", "essay words numbers 1 4 1"),
    "niah_multiquery": ("niah", "essay words numbers 1 1 4"),
    "vt": ("variable_tracking", ""),
    "cwe": ("common_words_extraction", ""),
    "fwe": ("freq_words_extraction", ""),
    "qa_1": ("qa", "squad"),
    "qa_2": ("qa", "hotpotqa"),
}
QA_FILES = {"squad": "dev-v2.0.json", "hotpotqa": "hotpot_dev_distractor_v1.json"}
NEEDLE = r"One of the special magic (\w+) for ([\w-]+) is: ([\w-]+)\."
failures = []


def check(ok, task, what):
    if not ok:
        failures.append(f"{task}: {what}")


def made_up_questions(folder):
    """Files in the formats of SQuAD and HotpotQA: 12 articles of 9 paragraphs, 60 questions with ten paragraphs each."""
    rng = random.Random(5)
    text = lambda mark: mark + " ".join(rng.choice("stone bird sea of the under 12 é漢 green old".split()) for _ in range(rng.randint(10, 50))) + "."
    qas = lambda mark: [{"question": f"Where is {mark}{q}?", "is_impossible": q == 1, "answers": [{"text": f"at {mark}"}] * (0 if q == 1 else q + 1)}
                        for q in range(3)]
    squad = {"data": [{"paragraphs": [{"context": text(f"P{a}x{p} "), "qas": qas(f"{a}x{p}")} for p in range(9)]} for a in range(12)]}
    paragraphs = [[f"Title {i}", [text(f"H{i} "), " " + text("")]] for i in range(300)]
    hotpot = [{"question": f"Which {i}?", "answer": f"this {i}", "context": rng.sample(paragraphs, 10)} for i in range(60)]
    folder.mkdir()
    for data, name in ((squad, QA_FILES["squad"]), (hotpot, QA_FILES["hotpotqa"])):
        (folder / name).write_text(json.dumps(data))
    return folder


def prepare(checkout, essays, qa_data, folder):
    """A copy of the scripts whose imports find the replacements."""
    synthetic = folder / "data" / "synthetic"
    shutil.copytree(checkout / "scripts" / "data" / "synthetic", synthetic)
    for name, text in SHIMS.items():
        path = folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(essays, synthetic / "json" / "PaulGrahamEssays.json")
    for name, file in QA_FILES.items():
        shutil.copy(qa_data / file, synthetic / "json" / f"{name}.json")
    words = {str(i): f"word{i:05d}" for i in range(40000)}
    (synthetic / "json" / "english_words.json").write_text(json.dumps(words))
    return synthetic


def run_original(task, options, synthetic, folder):
    sys.path.insert(0, str(synthetic))
    from constants import TASKS as texts
    script, parameters = TASKS[task]
    out = folder / "original"
    command = [sys.executable, synthetic / f"{script}.py", "--save_dir", out, "--save_name", task, "--tokenizer_path", options.tokenizer,
               "--tokenizer_type", "x", "--max_seq_length", options.length, "--tokens_to_generate", texts[script]["tokens_to_generate"],
               "--num_samples", options.count, "--template", texts[script]["template"] + texts[script]["answer_prefix"]]
    if script == "niah":
        names = ("type_haystack", "type_needle_k", "type_needle_v", "num_needle_k", "num_needle_v", "num_needle_q")
        for name, value in zip(names, parameters.split()):
            command += [f"--{name}", value]
    if script == "qa":
        command += ["--dataset", parameters]
    environment = dict(os.environ, PYTHONPATH=str(folder / "data"))
    subprocess.run([str(c) for c in command], check=True, env=environment, stderr=subprocess.PIPE)
    rows = [json.loads(line) for line in open(out / task / "validation.jsonl")]
    for row in rows:  # the two parts that users of prepare.py join again
        row["input"] += row["answer_prefix"]
        row["max_new_tokens"] = texts[script]["tokens_to_generate"]
    return rows


def run_ours(task, options):
    command = [options.program, "--task", task, "--length", options.length, "--count", options.count, "--tokenizer", options.tokenizer,
               "--haystack", options.essays, "--qa-data", options.qa_data]
    output = subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def mask(text):
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(r"\b\d{5,7}\b", "NUMBER", text)
    text = re.sub(r"\b[A-Z]{5}\b", "NAME", text)
    text = re.sub(r"\b[A-Z]{3}\b(?<!VAR)", "NAM", text)
    # Keys: adjective-noun, where the templates name them.
    text = re.sub(r"(?<=numbers for |.number for |..uuids for |...uuid for )[^\n:]*?(?= is: | mentioned)",
                  lambda m: re.sub(r"(and )?[^, ][^,]*", lambda w: (w[1] or "") + "KEY", m[0]), text) if "magic" in text else text
    return text


def counts(numbered):
    return sorted(collections.Counter(re.findall(r"\d+\. (.+?)(?= \d+\. |$)", numbered)).values(), reverse=True)


def documents_of(dataset, folder):
    """All documents, and for every question its own ones and those of its article, as the original reads them from the files."""
    data = json.loads((folder / QA_FILES[dataset]).read_text())
    questions = []
    if dataset == "squad":
        for article in data["data"]:
            contexts = {p["context"] for p in article["paragraphs"]}
            questions += [(q["question"], {p["context"]}, contexts, [a["text"] for a in q["answers"]])
                          for p in article["paragraphs"] for q in p["qas"] if not q["is_impossible"]]
    else:
        for item in data:
            contexts = {title + "\n" + "".join(sentences) for title, sentences in item["context"]}
            questions.append((item["question"], contexts, contexts, [item["answer"]]))
    return questions, set().union(*(contexts for _, _, contexts, _ in questions))


def qa_shape(row, number, questions, known):
    question, own, related, answers = questions[number]
    head, context = row["input"].split("\n\nDocument 1:\n", 1)
    context, tail = context.rsplit("\n\nAnswer the question", 1)
    documents = re.split(r"\n\nDocument \d+:\n", context)
    labels = [int(n) for n in re.findall(r"\n\nDocument (\d+):\n", "\n\nDocument 1:\n" + context)]
    used_up = len(documents) >= len(known)
    row["documents"] = len(documents)
    return {"head": head, "tail": tail.replace(question, "QUESTION"), "asked": question in tail, "labels": labels == list(range(1, len(labels) + 1)),
            "own": own <= set(documents) or used_up, "related first": related <= set(documents) or set(documents) <= related,
            "known": set(documents) <= known, "distinct": len(set(documents)) == min(len(documents), len(known)), "outputs": row["outputs"] == answers}


def shape(task, row, essay):
    """The properties in which samples of a task must agree."""
    script, text = TASKS[task][0], row["input"]
    if script == "niah":
        head, *body, tail = text.split("\n")
        context = "\n".join(body)
        needles = re.findall(NEEDLE, context)
        parts = {"head": mask(head), "tail": mask(tail), "outputs": len(row["outputs"]), "kinds": {n[0] for n in needles}}
        rest = re.sub(NEEDLE, "", context)
        if TASKS[task][1].startswith("essay"):
            parts["needles"] = len(needles)
            parts["essay"] = essay.startswith(" ".join(rest.split())[:-20])
        else:
            parts["lines"] = {mask(line) for line in body}
            parts["needles"] = len(needles) if "noise" in TASKS[task][1] else "many"
        values = collections.defaultdict(set)
        for _, key, value in needles:
            values[key].add(value)
        query = re.search(r"for (.*) mentioned in the provided text\?", tail)[1]
        asked = [k[4:] if k.startswith("and ") else k for k in query.split(", ")]
        parts["answers"] = set().union(*(values[k] for k in asked)) == set(row["outputs"])
        return parts
    if script == "variable_tracking":
        lines = text.split("\n")
        example, question = text.rsplit("Memorize and track", 1)
        statements = lambda part: [mask(line) for line in part.split("\n") if line.startswith("VAR")]
        return {"lines": {mask(line) for line in lines}, "example": statements(example), "chain": statements(question),
                "outputs": len(row["outputs"]), "noise in example": abs(example.count("The grass") - row["example_noise"]) <= 1}
    if script == "common_words_extraction":
        lines = text.split("\n")
        result = {"texts": [lines[0], re.sub(r"are: .*", "are: ", lines[2]), lines[3], lines[5]], "outputs": len(row["outputs"]),
                  "example": counts(lines[1]), "solved": len(re.findall(r"\d+\. ", lines[2].split("are:")[1]))}
        repeats = counts(lines[4])
        result["repeats"] = (repeats[:10], set(repeats[10:]))
        return result
    first, second = text.split("\n")
    head, coded = first.split("coded words. ")
    table = collections.Counter(coded.split(" "))
    ranks = table.most_common()
    dots = table["..."]
    zeta = all(abs(n - dots / (i + 1) ** 2) <= 1 for i, (_, n) in enumerate(ranks[:10]))
    return {"head": head, "tail": second, "dots": ranks[0][0] == "...", "zeta": zeta,
            "answers": {w for w, _ in ranks[1:4]} == set(row["outputs"]), "word": {len(w) for w in table if w != "..."}}


def depths(task, rows):
    """Needle depths as shares of the context."""
    found = []
    for row in rows:
        pattern = NEEDLE if TASKS[task][0] == "niah" else r"^VAR [A-Z]{5} ="
        end = len(row["input"]) - len(row["answer_prefix"])
        hits = [m for m in re.finditer(pattern, row["input"], re.M) if any(o in m[0] for o in row["outputs"])]
        begin = row["input"].rfind("Memorize and track") if task == "vt" else 0
        found += [(m.start() - begin) / (end - begin) for m in hits]
    return found


def compare(task, options, synthetic, folder, essay):
    theirs, ours = run_original(task, options, synthetic, folder), run_ours(task, options)
    check(len(theirs) == len(ours) == options.count, task, "number of samples")
    noise = collections.Counter(r["input"].rsplit("Memorize and track", 1)[0].count("The grass") for r in theirs).most_common(1)[0][0]
    for row in theirs + ours:
        row["example_noise"] = noise
    if TASKS[task][0] == "qa":
        questions, known = documents_of(TASKS[task][1], options.qa_data)
        shape_of = lambda row, number: qa_shape(row, number, questions, known)
    else:
        shape_of = lambda row, number: shape(task, row, essay)
    wanted = shape_of(theirs[0], 0)
    for name, rows in (("original", theirs), ("ours", ours)):
        for number, row in enumerate(rows):
            got = shape_of(row, number)
            for key, value in wanted.items():
                check(got[key] == value, task, f"{name} {key}: {got[key]!r}\n   instead of {value!r}")
            check(row["length"] <= options.length, task, f"{name} is longer than {options.length}: {row['length']}")
    spare = lambda rows: sum(options.length - r["length"] for r in rows) / len(rows)
    # The original drops ten documents at once if a sample is too long; ours fits every sample to one document.
    check(spare(ours) <= spare(theirs) + 30, task, f"ours leaves {spare(ours):.1f} tokens unused, the original {spare(theirs):.1f}")
    check([r["answer_prefix"] for r in theirs][0].strip()[:7] == ours[0]["answer_prefix"].strip()[:7], task, "answer prefix")
    check(theirs[0]["max_new_tokens"] == ours[0]["max_new_tokens"], task, "max_new_tokens")
    p = ""
    if TASKS[task][0] in ("niah", "variable_tracking"):
        result = stats.ks_2samp(depths(task, theirs), depths(task, ours))
        check(result.pvalue > 1e-3, task, f"depths differ: p = {result.pvalue:.2g}")
        p = f", depths p = {result.pvalue:.2f}"
    if TASKS[task][0] == "qa":
        mean = lambda rows: sum(r["documents"] for r in rows) / len(rows)
        p = f", documents {mean(theirs):.1f} and {mean(ours):.1f}"
    print(f"{task:16} unused tokens: original {spare(theirs):6.1f}, ours {spare(ours):5.1f}{p}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("checkout", "program", "tokenizer", "essays"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--qa-data", type=pathlib.Path)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    options = parser.parse_args()
    for name in ("program", "tokenizer", "essays"):
        setattr(options, name, getattr(options, name).absolute())
    essay = " ".join(json.loads(options.essays.read_text())["text"].split())
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        options.qa_data = options.qa_data.absolute() if options.qa_data else made_up_questions(folder / "qa")
        synthetic = prepare(options.checkout, options.essays, options.qa_data, folder)
        for task in options.tasks:
            compare(task, options, synthetic, folder, essay)
    for failure in dict.fromkeys(failures):
        print("DIFFERENT", failure)
    print(f"{len(options.tasks)} tasks at {options.length} tokens, {options.count} samples each: {len(failures)} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

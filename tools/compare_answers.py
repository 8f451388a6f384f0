#!/usr/bin/env python3
"""Compares two results files of `litecache eval run` sample by sample, for example one engine on two devices.

    tools/compare_answers.py A.jsonl B.jsonl [--tolerance POINTS]

Prints, for each configuration in both files, the average scores (0 to 100), how many answers differ in text and how many in
score. Exits with 1 if an average differs by more than the tolerance, or if the files have no sample in common.
"""
import argparse
import collections
import json
import sys


def read(path):
    """The predictions of a file: (configuration, task, length, id) -> (prediction, score)."""
    answers = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            if entry["type"] == "prediction":
                key = (entry["configuration"], entry["task"], entry["length"], entry["id"])
                answers[key] = (entry["prediction"], entry["score"])
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--tolerance", type=float, default=2.0, help="points (default: 2)")
    arguments = parser.parse_args()
    a, b = read(arguments.a), read(arguments.b)
    by_configuration = collections.defaultdict(list)
    for key in a.keys() & b.keys():
        by_configuration[key[0]].append((a[key], b[key]))
    if not by_configuration:
        sys.exit(f"{arguments.a} and {arguments.b} have no sample in common")
    far = False
    for name, pairs in sorted(by_configuration.items()):
        averages = [100 * sum(pair[i][1] for pair in pairs) / len(pairs) for i in (0, 1)]
        texts = sum(x[0] != y[0] for x, y in pairs)
        scores = sum(abs(x[1] - y[1]) > 1e-9 for x, y in pairs)
        print(f"{name}: {len(pairs)} samples, average {averages[0]:.2f} and {averages[1]:.2f}; "
              f"{texts} answers differ in text, {scores} in score")
        far = far or abs(averages[0] - averages[1]) > arguments.tolerance
    sys.exit(1 if far else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Shows the kernels that kernel_trace_cuda.cc has written down: how long each took, or one step from its first to its last.

    lab/tools/kernel_trace.py kernels.tsv              every kernel: how often, us on average, us in all
    lab/tools/kernel_trace.py kernels.tsv --step -2    one step (-1: the last), us from its begin; --step 0 is the first

A step begins with --first, EmbeddingKernel by default.
"""
import argparse
import collections
import gzip
import re
from typing import NamedTuple


class Kernel(NamedTuple):
    begin: int
    end: int
    stream: str
    grid: str
    registers: str
    shared_bytes: str
    name: str


def read(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    # Without namespaces, template arguments and parameters.
    short = [re.sub(r"[<(].*", "", row[6].replace("(anonymous namespace)::", "")).split()[-1].split("::")[-1] for row in rows]
    return sorted(Kernel(int(row[0]), int(row[1]), *row[2:6], name) for row, name in zip(rows, short))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--step", type=int)
    parser.add_argument("--first", default="EmbeddingKernel", help="part of the name of a step's first kernel")
    options = parser.parse_args()
    kernels = read(options.trace)
    if options.step is None:
        times = collections.defaultdict(list)
        for kernel in kernels:
            times[kernel.name].append((kernel.end - kernel.begin) / 1000)
        for name, us in sorted(times.items(), key=lambda item: -sum(item[1])):
            print(f"{len(us):7} {sum(us) / len(us):9.1f} {sum(us):11.1f}  {name}")
        return
    begins = [i for i, kernel in enumerate(kernels) if options.first in kernel.name] + [len(kernels)]
    steps = list(zip(begins, begins[1:]))
    if not -len(steps) <= options.step < len(steps):
        parser.error(f"--step {options.step}: there are {len(steps)} steps that begin with {options.first}")
    first, end = steps[options.step]
    for kernel in kernels[first:end]:
        begin, took = kernel.begin - kernels[first].begin, kernel.end - kernel.begin
        print(f"{begin / 1000:9.1f} {(begin + took) / 1000:9.1f} {took / 1000:7.1f}  stream {kernel.stream:4} {kernel.name}  {kernel.grid}  {kernel.registers} registers, {kernel.shared_bytes} bytes")


if __name__ == "__main__":
    main()

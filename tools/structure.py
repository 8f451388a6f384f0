#!/usr/bin/env python3
"""Reports the size and structure of the tree, and whether includes follow the order of the folders.

    tools/structure.py            lines by part, large files, long functions, public symbols, includes that break the order
    tools/structure.py --check    only what breaks a rule; exit status 1 if anything does (a test runs this)

A folder of src/ includes only folders before it in ORDER; the same holds for the folders of src/ops and src/kv. Nothing in src/ or
include/ includes lab/. No source of a build without CUDA includes CUDA's headers. JSON is parsed by one file, whose limits hold everywhere. Sources are read as text; functions are recognized by
clang-format's layout.
"""
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ORDER = "base device ops io tokenizer grammar kv model engine profile eval bench server cli capi".split()
# Order inside a folder of src/; "." is the folder's own files.
INSIDE = {
    "ops": "common step rows dense linear experts slots transfer attention sparse_prefill recurrence select reuse sample".split(),
    "kv": ". pages heads retrieve transfer step full streaming offload kvpr litecache api recurrent mixed".split(),
}
SOURCES = (".h", ".cc", ".cu", ".cuh")
LARGE, LONG = 400, 120
# nlohmann's parsers, which have no limits, and the file that may call them.
JSON_PARSER = "src/io/json_parser.cc"
PARSE_CALL = re.compile(r'::(?:parse|sax_parse|accept|from_(?:bjdata|bson|cbor|msgpack|ubjson))\(|"_json\b')
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
CUDA_HEADER = re.compile(r"^#include <((?:cu|nccl|nv|vector_types|driver_types|mma\.)[^>]*)>", re.MULTILINE)
ONLY_NVCC = re.compile(r"^#ifdef __CUDACC__$.*?^#endif", re.MULTILINE | re.DOTALL)
# Comments, strings and characters: braces in them do not count.
TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
NO_FUNCTION = re.compile(r"\b(?:namespace|class|struct|enum|union)\b[^()]*$|=\s*$")


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [f for f in listed.splitlines() if (ROOT / f).is_file()]


def part(path):
    if path.startswith("tests/") or "/tests/" in path:
        return "tests"
    return {"src": "product", "include": "product", "lab": "laboratory", "tools": "tools"}.get(path.split("/")[0])


def against_order(files):
    for path in files:
        if not path.startswith(("src/", "include/")) or not path.endswith(SOURCES):
            continue
        here = path.split("/")[1:]
        for target in INCLUDE.findall((ROOT / path).read_text(encoding="utf-8")):
            there = target.split("/")
            if there[0] == "lab":
                yield f"{path} includes {target}: the product does not know the laboratory"
            if path.startswith("include/") or there[0] not in ORDER or here[0] not in ORDER:
                continue
            if ORDER.index(there[0]) > ORDER.index(here[0]):
                yield f"{path} includes {target}: {there[0]} stands above {here[0]}"
            inside = INSIDE.get(here[0])
            if inside and there[0] == here[0]:
                a, b = (p[1] if len(p) > 2 else "." for p in (here, there))
                if a not in inside or b not in inside:
                    yield f"{path} or {target} lies in a folder that {Path(__file__).name} does not know"
                elif inside.index(b) > inside.index(a):
                    yield f"{path} includes {target}: {b} stands above {a} in {here[0]}"


def cuda_headers(files):
    """Sources that a machine without the CUDA toolkit compiles, and the toolkit's headers that they reach."""
    headers = {}  # of a file: what it includes, itself or by others

    def reached(path):
        if path not in headers:
            headers[path] = set()
            text = ONLY_NVCC.sub("", (ROOT / path).read_text(encoding="utf-8"))
            headers[path].update((path, header) for header in CUDA_HEADER.findall(text))
            for target in INCLUDE.findall(text):
                for place in (f"src/{target}", f"include/{target}", target):
                    if place in known:
                        headers[path] |= reached(place)
        return headers[path]

    known = set(files)
    for path in files:
        if path.startswith(("src/", "lab/")) and path.endswith(".cc") and not path.endswith("_cuda.cc") and "/cuda/" not in path:
            for where, header in sorted(reached(path)):
                yield f"{path} is compiled without CUDA, and reaches <{header}> by {where}"


def json_parsers(files):
    """Lines of the product and the laboratory that call a parser of nlohmann's."""
    for path in files:
        if part(path) in ("product", "laboratory") and path.endswith(SOURCES):
            for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
                if PARSE_CALL.search(line):
                    yield path, f"{path}:{number} parses JSON: use io::ParseJson or io::ParseLimitedJson, which have limits"


def long_functions(path):
    text = TEXT.sub(lambda m: "\n" * m[0].count("\n"), (ROOT / path).read_text(encoding="utf-8"))
    open_blocks, last, inside = [], 0, 0  # blocks as (is a function, its first line); inside: number of open functions
    for mark in re.finditer(r"[{};]", text):
        line = text.count("\n", 0, mark.start()) + 1
        if mark[0] == "{":
            head = text[last:mark.start()]
            function = inside == 0 and "(" in head and not NO_FUNCTION.search(head)
            open_blocks.append((function, line))
            inside += function
        elif mark[0] == "}" and open_blocks:
            function, begin = open_blocks.pop()
            inside -= function
            if function and line - begin + 1 > LONG:
                yield line - begin + 1, f"{path}:{begin}"
        last = mark.end()


def public_symbols(files):
    """Types and functions that include/ declares in a namespace, without members."""
    declared = re.compile(r"^(?:struct|class|enum class) \w+ *[:{]|^(?!using|namespace|template|#|//|\s|})\S.*\w\(", re.MULTILINE)
    return sum(len(declared.findall((ROOT / f).read_text(encoding="utf-8"))) for f in files if f.startswith("include/") and f.endswith(".h"))


def report(files):
    lines, large, long = Counter(), [], []
    for path in files:
        where = part(path)
        if where and path.endswith(SOURCES + (".py", ".js", ".html", ".css")):
            count = (ROOT / path).read_bytes().count(b"\n")
            lines[where] += count
            if count > LARGE and path.endswith(SOURCES):
                large.append((count, path))
        if where in ("product", "laboratory") and path.endswith(SOURCES):
            long += long_functions(path)
    for where in ("product", "laboratory", "tests", "tools"):
        print(f"{where + ', lines':32}{lines[where]:8}")
    print(f"{f'files over {LARGE} lines':32}{len(large):8}")
    for count, path in sorted(large, reverse=True):
        print(f"    {count:6}  {path}")
    print(f"{f'functions over {LONG} lines':32}{len(long):8}")
    for count, path in sorted(long, reverse=True):
        print(f"    {count:6}  {path}")
    print(f"{'public symbols':32}{public_symbols(files):8}")
    print(f"{'includes against the order':32}{sum(1 for _ in against_order(files)):8}")


def main():
    files = tracked()
    if sys.argv[1:] == ["--check"]:
        parsers = list(json_parsers(files))
        broken = list(against_order(files)) + list(cuda_headers(files)) + [message for path, message in parsers if path != JSON_PARSER]
        checked = sum(1 for f in files if f.startswith("src/") and f.endswith(SOURCES))
        print("\n".join(broken) or f"{checked} sources keep the rules")
        # A search that reads nothing would report no errors either.
        return 1 if broken or checked < 100 or len(parsers) != 1 else 0
    report(files)
    return 0


if __name__ == "__main__":
    sys.exit(main())

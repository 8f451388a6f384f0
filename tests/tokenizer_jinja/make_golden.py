"""Renders the conversations with Transformers.

make_golden.py                              rewrites data/golden.jsonl from data/*.jinja
make_golden.py --check PROGRAM [FOLDER...]  compares PROGRAM (jinja_render) with Transformers on the
                                            *.jinja files of data/ and the given folders
"""

import argparse
import json
import pathlib
import sys

import conversations
import reference

DATA = pathlib.Path(__file__).parent / "data"


def cases(folder):
    for path in sorted(folder.glob("*.jinja")):
        # Read like Transformers does: newlines unchanged.
        template = path.read_text(encoding="utf-8")
        for name, request in conversations.requests():
            request = {**request, "special_tokens": reference.SPECIAL_TOKENS}
            yield path, template, name, request


def write_golden():
    lines = []
    for path, template, name, request in cases(DATA):
        answer = reference.render_chat(template, request)
        case = {"template": path.name, "name": name, "request": request, **answer}
        lines.append(json.dumps(case, ensure_ascii=False) + "\n")
    (DATA / "golden.jsonl").write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} renderings")


def check(program, folders):
    failures = 0
    for folder in folders:
        batch = list(cases(folder))
        answers = reference.run_program(program, [{"template": t, **r} for _, t, _, r in batch])
        counts = {}
        for (path, template, name, request), answer in zip(batch, answers):
            expected = reference.render_chat(template, request)
            same = expected.get("text") == answer.get("text") and "unsupported" not in answer
            count = counts.setdefault(path.name, [0, 0, 0])
            count[0 if same and "text" in answer else 1 if same else 2] += 1
            if not same:
                failures += 1
                print(f"DIFFERS {path.name} {name}\n  expected {expected}\n  got      {answer}")
        for name, (equal, errors, different) in counts.items():
            print(f"{name}: {equal} equal, {errors} refused by both, {different} different")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", metavar="PROGRAM")
    parser.add_argument("folders", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    if args.check is None:
        write_golden()
        return 0
    return 1 if check(args.check, [DATA, *args.folders]) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Compares jinja_render with Jinja2, as configured by Transformers, on random templates.

compare_with_reference.py PROGRAM [--count N] [--seed S]"""

import argparse
import os
import random
import re
import sys

import opaque
import random_templates
import reference

# Templates that the program rejects by design, with a message; and slices of literals that cannot be sliced, which
# Jinja's constant folding makes undefined although it rejects them for variables.
BY_DESIGN = re.compile(r"unhashable type: 'slice'|object is not subscriptable|over 64 bits|over the limit|gave up after|nested more|too big")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("LC_TEST_SEED", random.SystemRandom().randrange(2**31))))
    args = parser.parse_args()
    print(f"LC_TEST_SEED={args.seed}")
    requests = []
    for i in range(args.count):
        generator = random_templates.Generator(args.seed * 1000003 + i)
        requests.append({"template": generator.template(), "context": generator.context()})
    answers = reference.run_program(args.program, requests)
    equal = refused = skipped = unsupported = different = 0
    for request, answer in zip(requests, answers):
        expected = reference.render_bare(request["template"], request["context"])
        text = expected.get("text")
        if "unsupported" in answer:
            unsupported += 1
        elif text is not None and text == answer.get("text"):
            equal += 1
        elif text is None and "error" in answer:
            refused += 1
        elif BY_DESIGN.search(answer.get("error", "")) or opaque.matters(request["template"], request["context"]):
            skipped += 1
        elif "text" in answer and answer == reference.render_bare(request["template"], request["context"], fold_constants=False):
            # Jinja writes a folded -2 without parentheses, so that -2 ** n is -(2 ** n), which -n ** 2 is not.
            skipped += 1
        else:
            different += 1
            if different <= 40:
                print(f"DIFFERS\n  template {request['template']!r}\n  context  {request['context']!r}")
                print(f"  expected {expected}\n  got      {answer}")
    print(f"{equal} equal, {refused} refused by both, {unsupported} refused by name, {skipped} not comparable, "
          f"{different} different")
    # A generator that produces only errors would compare nothing.
    return 0 if different == 0 and equal > args.count // 4 else 1


if __name__ == "__main__":
    sys.exit(main())

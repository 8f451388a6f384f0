"""Averages the weights of two models; the second continues the training of the first.

The second fits its training data more closely and generalizes slightly worse; a point between the two
is better than either on held-out code (README.md, "Findings").
"""

import argparse
import pathlib

import export
from model import Llama, Shape


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", required=True, type=pathlib.Path)
    parser.add_argument("--second", required=True, type=pathlib.Path)
    parser.add_argument("--share", type=float, required=True, help="of the second model, 0 to 1")
    parser.add_argument("--output", required=True, type=pathlib.Path)
    args = parser.parse_args()
    first, second = export.load(args.first, "cpu"), export.load(args.second, "cpu")
    model = Llama(Shape())
    model.load_state_dict({name: first[name].lerp(second[name], args.share) for name in first})
    export.save(model, args.output)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compares our tokenizers with the `tokenizers` package, id by id, on real vocabularies.

    build/test-python/bin/python tests/tokenizer/compare_with_reference.py \
        --dump build/release/tests/tokenizer_dump --folder build/tokenizer-vocabularies

For every vocabulary and text: ids with and without the special tokens of the template, ids with
special tokens in the text read as plain text, the decoded text with special tokens kept and left
out, and the streamed text (which tokenizer_dump compares itself). The texts are new in every run;
LC_TEST_SEED repeats one.
"""

import argparse
import os
import pathlib
import random
import struct
import subprocess
import sys
import time

from tokenizers import Tokenizer

import texts
import vocabularies


class Records:
    """Reads what tokenizer_dump writes."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, size):
        (count,) = struct.unpack_from("<I", self.data, self.at)
        begin = self.at + 4
        self.at = begin + count * size
        if self.at > len(self.data):
            raise SystemExit("tokenizer_dump: truncated output")
        return self.data[begin : self.at], count

    def ids(self):
        data, count = self.take(4)
        return list(struct.unpack(f"<{count}i", data))

    def text(self):
        return self.take(1)[0].decode("utf-8")


def reference(tokenizer, batch):
    """The package's five results for each text."""
    full = tokenizer.encode_batch_fast(batch)
    plain = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
    tokenizer.encode_special_tokens = True
    literal = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
    tokenizer.encode_special_tokens = False
    ids = [encoding.ids for encoding in full]
    return zip(
        ids,
        [encoding.ids for encoding in plain],
        [encoding.ids for encoding in literal],
        tokenizer.decode_batch(ids, skip_special_tokens=False),
        tokenizer.decode_batch(ids, skip_special_tokens=True),
    )


WHAT = [
    "ids with special tokens",
    "ids without",
    "ids with special tokens read as text",
    "decoded text",
    "decoded text without special tokens",
]


def compare(dump, name, path, seed, count):
    tokenizer = Tokenizer.from_file(str(path))
    specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    source = texts.Texts(random.Random(f"{seed} {name}"), specials)
    batch = [source.one() for _ in range(count)]
    data = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in batch)
    begin = time.monotonic()
    result = subprocess.run([dump, str(path)], input=data, stdout=subprocess.PIPE)
    ours_took = time.monotonic() - begin
    if result.returncode != 0:
        raise SystemExit(f"{name}: tokenizer_dump failed ({result.returncode})")
    records = Records(result.stdout)
    begin = time.monotonic()
    expected = list(reference(tokenizer, batch))
    theirs_took = time.monotonic() - begin
    differing = 0
    tokens = 0
    for text, want in zip(batch, expected):
        got = (records.ids(), records.ids(), records.ids(), records.text(), records.text())
        tokens += len(want[0])
        if got == want:
            continue
        differing += 1
        if differing <= 3:
            print(f"{name}: differs on {text!r}")
            for what, ours, theirs in zip(WHAT, got, want):
                if ours != theirs:
                    print(f"  {what}:\n    ours   {ours!r}\n    theirs {theirs!r}")
    print(
        f"{name:18} {count} texts, {tokens} tokens, {len(data) / 1e6:.1f} MB, {differing} differ"
        f" (ours {ours_took:.1f} s, package {theirs_took:.1f} s)",
        flush=True,
    )
    return differing


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", required=True, help="path of the program tokenizer_dump")
    parser.add_argument("--folder", required=True, type=pathlib.Path, help="for vocabularies")
    parser.add_argument("--texts", type=int, default=9000, help="texts for each vocabulary")
    parser.add_argument("--only", help="name of the one vocabulary to compare")
    args = parser.parse_args()
    seed = os.environ.get("LC_TEST_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"LC_TEST_SEED={seed}", flush=True)
    paths = vocabularies.build(args.folder)
    if args.only:
        paths = {args.only: paths[args.only]}
    differing = sum(compare(args.dump, name, path, seed, args.texts) for name, path in paths.items())
    print(f"{args.texts * len(paths)} texts compared, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Compares our tokenizers with the `tokenizers` package, id by id, on real vocabularies.

    build/test-python/bin/python tests/tokenizer/compare_with_reference.py \
        --dump build/release/tests/tokenizer_dump --folder build/tokenizer-vocabularies

For every vocabulary and text: ids with and without the special tokens of the template, ids with
special tokens in the text read as plain text, the decoded text with special tokens kept and left
out, and the streamed text (which tokenizer_dump compares). The texts are different in every run;
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

import gguf_vocabularies
import pipelines
import texts
import vocabularies


class Records:
    """Reads the output of tokenizer_dump."""

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
    """The package's five results for each text (in the format of tokenizer_dump)."""
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


def compare(dump, name, tokenizer, path, seed, count):
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
    shortest = None
    tokens = 0
    for text, want in zip(batch, expected):
        got = (records.ids(), records.ids(), records.ids(), records.text(), records.text())
        tokens += len(want[0])
        if got == want:
            continue
        differing += 1
        if shortest is None or len(text) < len(shortest[0]):
            shortest = (text, got, want)
    if shortest is not None:
        print(f"{name}: the shortest text that differs is {shortest[0]!r}")
        for what, ours, theirs in zip(WHAT, *shortest[1:]):
            if ours != theirs:
                print(f"  {what}:\n    ours   {ours!r}\n    theirs {theirs!r}")
    print(
        f"{name:18} {count} texts, {tokens} tokens, {len(data) / 1e6:.1f} MB, {differing} differ"
        f" (ours {ours_took:.1f} s, package {theirs_took:.1f} s)",
        flush=True,
    )
    return differing


def megabytes(seed):
    """Name -> one megabyte of text, easy and hard."""
    source = texts.Texts(random.Random(f"{seed} speed"), None)
    code = "\n".join(source.code)
    mixed = "".join(source.fragment() for _ in range(200000))
    cyrillic = "".join(source.random.choice("аеиоутнслрвк ") for _ in range(1 << 19))
    ideographs = "".join(chr(source.random.randint(0x4E00, 0x9FA5)) for _ in range(1 << 19))
    raw = {
        "code": code,
        "mixed": mixed,
        "cyrillic": cyrillic,
        "ideographs": ideographs,
        "a": "a" * (1 << 20),
        "spaces": " " * (1 << 20),
        "spaces, then a": " " * ((1 << 20) - 1) + "a",
        "newlines": "\n" * (1 << 20),
        "equals": "=" * (1 << 20),
        "digits": "7" * (1 << 20),
        "abab": "ab" * (1 << 19),
        "emoji": "😀" * (1 << 18),
    }
    return {name: text.encode()[: 1 << 20] for name, text in raw.items()}


def check_speed(dump, name, path, samples, limit):
    """Prints MB/s (encoding/decoding) of each sample; counts those slower than `limit` seconds."""
    data = b"".join(struct.pack("<I", len(t)) + t for t in samples.values())
    result = subprocess.run([dump, "--time", str(path)], input=data, stdout=subprocess.PIPE)
    if result.returncode != 0:
        raise SystemExit(f"{name}: tokenizer_dump failed ({result.returncode})")
    slow = 0
    shown = []
    for (sample, text), line in zip(samples.items(), result.stdout.decode().splitlines()):
        encode, decode = map(float, line.split()[:2])
        slow += encode > limit
        shown.append(f"{sample} {len(text) / 1e6 / encode:.0f}/{len(text) / 1e6 / decode:.0f}")
    print(f"{name:18} MB/s: {', '.join(shown)}", flush=True)
    return slow


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", required=True, help="path of the program tokenizer_dump")
    parser.add_argument("--folder", required=True, type=pathlib.Path, help="for vocabularies")
    parser.add_argument("--texts", type=int, default=9000, help="texts for each vocabulary")
    parser.add_argument("--only", help="name of the one vocabulary to compare")
    parser.add_argument("--seconds", type=float, default=1.0, help="allowed for a megabyte")
    args = parser.parse_args()
    seed = os.environ.get("LC_TEST_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"LC_TEST_SEED={seed}", flush=True)
    paths = vocabularies.build(args.folder)
    ggufs = gguf_vocabularies.build(args.folder / "gguf", paths)
    small = pipelines.build(args.folder / "pipelines")
    if args.only:
        paths = {name: path for name, path in paths.items() if name == args.only}
        ggufs = {name: pair for name, pair in ggufs.items() if name == args.only}
        small = {name: path for name, path in small.items() if name.startswith(args.only)}

    def from_json(files):
        return {name: (Tokenizer.from_file(str(path)), path) for name, path in files.items()}

    def differences(pairs, count):
        return sum(compare(args.dump, name, *pair, seed, count) for name, pair in pairs.items())

    large = from_json(paths) | ggufs
    differing = differences(large, args.texts)
    print(f"{args.texts * len(large)} texts compared, {differing} differ", flush=True)
    few = max(50, args.texts // 30)
    unlike = differences(from_json(small), few)
    print(f"{few * len(small)} texts compared with small tokenizers, {unlike} differ", flush=True)
    differing += unlike
    samples = megabytes(seed)
    slow = sum(check_speed(args.dump, n, path, samples, args.seconds) for n, path in paths.items())
    print(f"{len(samples) * len(paths)} megabytes timed, {slow} took over {args.seconds} s to encode")
    return 1 if differing or slow else 0


if __name__ == "__main__":
    sys.exit(main())

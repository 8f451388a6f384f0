#!/usr/bin/env python3
"""Writes the tokenizers of tests/tokenizer/fixtures, trained on a few sentences written for them, and
the `tokenizers` package's results on some texts.

    build/test-python/bin/python tests/tokenizer/make_fixtures.py
"""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors, trainers

FOLDER = pathlib.Path(__file__).resolve().parent / "fixtures"
CORPUS = [
    "the key of the cache is the sum of its words, and the words of the cache are many",
    "a tokenizer cuts the text into pieces; the pieces are numbers, 12 or 345 of them",
    "def encode(text): return [token for token in text.split() if token]",
    "il était une fois un élève très étonné, né en été",
    "the end of the text is not the end of the stream, and the stream is not the text",
] * 4
TEXTS = [
    "",
    " ",
    "the text",
    "  the  words\n\n  of the stream\t\t12345",
    "def f(x):\n    return x  # été 😀 日本語\r\n",
    "<s>the</s> <tool> text<mask>  end",
    "x\u0000y\u00a0z\u3000\u200b\ufeff\U0001f469\u200d\U0001f680",
    "don't DON'T we'LL e\u0301t\u00e9 \u1e9b\u0323",
    "a" * 70,
    " " * 33 + "a",
    "\u2581the \u2581\u2581text",
    "<0x41><s",
]


def byte_level():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Split(Regex(pattern), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360, show_progress=False, initial_alphabet=pre.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
            ),
        ]
    )
    return tokenizer


def sentencepiece_style():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    specials = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=specials + [f"<0x{b:02X}>" for b in range(256)],
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # The trainer registered the byte tokens as special ones, but they are ordinary.
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] in specials]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, tokenizer in {"byte_level": byte_level(), "spm": sentencepiece_style()}.items():
        (FOLDER / f"{name}.json").write_text(
            json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n"
        )
        golden = []
        for text in TEXTS:
            ids = tokenizer.encode(text).ids
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            tokenizer.encode_special_tokens = True
            literal = tokenizer.encode(text, add_special_tokens=False).ids
            tokenizer.encode_special_tokens = False
            golden.append(
                {
                    "text": text,
                    "ids": ids,
                    "plain": plain,
                    "literal": literal,
                    "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                    "decoded_plain": tokenizer.decode(ids, skip_special_tokens=True),
                }
            )
        lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in golden)
        (FOLDER / f"{name}.golden.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()

"""Small tokenizers that use every supported part of tokenizer.json, one or a few at a time."""

import itertools
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors, trainers

import texts

NORMALIZERS = {
    "nfc": lambda: normalizers.NFC(),
    "nfd": lambda: normalizers.NFD(),
    "nfkc": lambda: normalizers.NFKC(),
    "nfkd": lambda: normalizers.NFKD(),
    "lowercase": lambda: normalizers.Lowercase(),
    "strip": lambda: normalizers.Strip(),
    "strip-left": lambda: normalizers.Strip(left=True, right=False),
    "strip-right": lambda: normalizers.Strip(left=False, right=True),
    "strip-accents": lambda: normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    "nmt": lambda: normalizers.Nmt(),
    "prepend": lambda: normalizers.Prepend("<<"),
    "replace": lambda: normalizers.Replace("ab", "b"),
    "replace-regex": lambda: normalizers.Replace(Regex(r"\s+"), " "),
    "replace-empty-matches": lambda: normalizers.Replace(Regex("x*"), "-"),
    "replace-caseless": lambda: normalizers.Replace(Regex("(?i)[st]"), "!"),
    "bytes": lambda: normalizers.ByteLevel(),
}

# Constructs in which Oniguruma and PCRE2 differ or might differ.
PATTERNS = [
    r"\w+",
    r"\W",
    r"\b",
    r"\B\d",
    r"[\w']+",
    r"[^\w\s]+",
    r"\h{2}",
    r"[\h-]+",
    r"\p{Han}+|\p{Hiragana}+",
    r"[^\p{Han}]+",
    r"\P{L}+",
    r"\p{^Lu}\p{Lu}",
    r"\p{Letter}{2,}?",
    r"\d{1,3}+",
    r"\d{2}?",
    r"\p{N}{,2}",
    r"(?i:straße|K)+",
    r"(?i)ı|S",
    r"(?m:a.b)|.\n",
    r"^\s*\S",
    r"\s$",
    r"\A.|.\z",
    r"(?<=\s)\S|(?<!a)b",
    r"(?>\s+)\S",
    r"\u00e9|\x41|\x{1F600}",
    r"\v|\t|\e",
    r"a++b?|a*+",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[\]\[\-\\^]|[-a]|[a-]",
    r"\{\}|x{1|y{2}",
    r"(\s)|(?:)",
    r"\S+\s*",
    r"\D\s",
]

BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]


def pre_tokenizers():
    table = {
        "bytes": lambda: pre.ByteLevel(add_prefix_space=False),
        "bytes-space": lambda: pre.ByteLevel(add_prefix_space=True),
        "bytes-whole": lambda: pre.ByteLevel(add_prefix_space=False, use_regex=False),
        "whitespace": lambda: pre.Whitespace(),
        "whitespace-split": lambda: pre.WhitespaceSplit(),
        "digits": lambda: pre.Digits(individual_digits=True),
        "digit-runs": lambda: pre.Digits(individual_digits=False),
        "delimiter": lambda: pre.CharDelimiterSplit("e"),
        "fixed": lambda: pre.FixedLength(length=3),
        "bytes-then-digits": lambda: pre.Sequence([pre.ByteLevel(), pre.Digits()]),
    }
    for scheme, split in itertools.product(["first", "never", "always"], [True, False]):
        table[f"metaspace-{scheme}-{split}"] = lambda scheme=scheme, split=split: pre.Metaspace(
            prepend_scheme=scheme, split=split
        )
    for behavior in BEHAVIORS:
        table[f"punctuation-{behavior}"] = lambda behavior=behavior: pre.Punctuation(behavior)
        for invert in [False, True]:
            table[f"split-{behavior}-{invert}"] = lambda behavior=behavior, invert=invert: pre.Split(
                Regex(r"[aeiou\s]"), behavior, invert
            )
            table[f"split-string-{behavior}-{invert}"] = (
                lambda behavior=behavior, invert=invert: pre.Split(" ", behavior, invert)
            )
    for i, pattern in enumerate(PATTERNS):
        table[f"pattern-{i}"] = lambda pattern=pattern: pre.Split(Regex(pattern), "isolated")
    return table


def decoder_table():
    fallback = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return {
        "none": lambda: None,
        "bytes": lambda: decoders.ByteLevel(),
        "metaspace": lambda: decoders.Metaspace(),
        "metaspace-never": lambda: decoders.Metaspace(prepend_scheme="never"),
        "fallback": lambda: decoders.Sequence([*fallback, decoders.Strip(" ", 1, 0)]),
        "fallback-alone": lambda: decoders.ByteFallback(),
        "suffix": lambda: decoders.BPEDecoder(suffix="e"),
        "fuse-replace": lambda: decoders.Sequence([decoders.Fuse(), decoders.Replace("aba", "X")]),
        "fuse-replace-regex": lambda: decoders.Sequence(
            [decoders.Fuse(), decoders.Replace(Regex(r"\s+|b+"), "_")]
        ),
        "bytes-replace": lambda: decoders.Sequence([decoders.ByteLevel(), decoders.Replace("  ", " ")]),
        "strip-inner": lambda: decoders.Strip("a", 2, 0),
        "fuse-strip": lambda: decoders.Sequence([decoders.Fuse(), decoders.Strip("a", 3, 0)]),
    }


def train(corpus, pre_tokenizer, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, limit_alphabet=400)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def add_tokens(tokenizer):
    tokenizer.add_tokens(
        [
            AddedToken("Word", single_word=True, normalized=False),
            AddedToken("left ", lstrip=True, normalized=True),
            AddedToken(" right", rstrip=True, normalized=False),
            AddedToken("ab", normalized=True),
            AddedToken("abc", normalized=False),
            AddedToken("É", normalized=True),
            AddedToken("\n", normalized=False, rstrip=True),
        ]
    )
    tokenizer.add_special_tokens(
        [
            AddedToken("<s>", special=True),
            AddedToken("</s>", special=True, lstrip=True, rstrip=True),
            AddedToken("[CLS]", special=True, normalized=True, single_word=True),
        ]
    )
    pair = [("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))]
    return pair


def build(folder):
    """Name -> path of each tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = texts.Texts(random.Random(1), None)
    corpus = [draw.one() for _ in range(1500)]
    byte_model = train(corpus, pre.ByteLevel(add_prefix_space=False)).to_str()
    plain = {
        "unk": dict(unk_token="[UNK]"),
        "fuse": dict(unk_token="[UNK]", fuse_unk=True),
        "silent": dict(),
        "fallback": dict(unk_token="[UNK]", fuse_unk=True, byte_fallback=True),
        "ignore": dict(unk_token="[UNK]", ignore_merges=True),
        "affixes": dict(
            unk_token="[UNK]", continuing_subword_prefix="##", end_of_word_suffix="</w>"
        ),
    }
    plain_models = {}
    for name, options in plain.items():
        data = json.loads(train(corpus, pre.Whitespace(), **options).to_str())
        size = len(data["model"]["vocab"])
        extra = ["[UNK]", "▁"]
        if name == "fallback":
            # One byte is missing, so characters with it are unknown.
            extra += [f"<0x{b:02X}>" for b in range(256) if b != 0xE2]
        for token in extra:
            if token not in data["model"]["vocab"]:
                data["model"]["vocab"][token] = size
                size += 1
        plain_models[name] = json.dumps(data)

    paths = {}

    def save(name, tokenizer):
        paths[name] = folder / f"{name}.json"
        tokenizer.save(str(paths[name]), pretty=False)

    for name, make in NORMALIZERS.items():
        for first in [True, False]:
            tokenizer = Tokenizer.from_str(plain_models["unk" if first else "fallback"])
            tokenizer.normalizer = make()
            tokenizer.pre_tokenizer = pre.Metaspace() if first else pre.Metaspace(prepend_scheme="first")
            pair = add_tokens(tokenizer)
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<s> $A </s>" if first else "$A </s> $A", special_tokens=pair
            )
            save(f"normalizer-{name}-{'always' if first else 'first'}", tokenizer)
    for name, make in pre_tokenizers().items():
        bytes_last = name.startswith("bytes")
        tokenizer = Tokenizer.from_str(byte_model if bytes_last else plain_models["fallback"])
        tokenizer.pre_tokenizer = make()
        pair = add_tokens(tokenizer)
        tokenizer.post_processor = processors.RobertaProcessing(pair[1], pair[0])
        save(f"pre-{name}", tokenizer)
    for name, model in plain_models.items():
        tokenizer = Tokenizer.from_str(model)
        tokenizer.pre_tokenizer = pre.Metaspace(split=name != "fallback")
        pair = add_tokens(tokenizer)
        tokenizer.post_processor = processors.BertProcessing(pair[1], pair[0])
        save(f"model-{name}", tokenizer)
    for name, make in decoder_table().items():
        tokenizer = Tokenizer.from_str(
            byte_model if name.startswith("bytes") else plain_models["fallback"]
        )
        tokenizer.pre_tokenizer = pre.ByteLevel() if name.startswith("bytes") else pre.Metaspace()
        decoder = make()
        if decoder is not None:
            tokenizer.decoder = decoder
        add_tokens(tokenizer)
        save(f"decoder-{name}", tokenizer)
    return paths

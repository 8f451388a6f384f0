"""Shared by training and ablation: the model with mixed heads, the documents, the positions of the loss."""

import concurrent.futures
import hashlib
import json
import pathlib
import random

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, logging

from mixed_attention import HeadMix
from passkeys import KINDS, Haystack, Maker, read_words

logging.set_verbosity_error()
logging.disable_progress_bar()
DATA = pathlib.Path(__file__).resolve().parents[2] / "data"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def add_arguments(parser):
    parser.add_argument("--model", required=True, type=pathlib.Path, help="Hugging Face directory")
    parser.add_argument("--haystack", type=pathlib.Path, default=DATA / "haystack" / "python_stdlib.txt", help="text file")
    parser.add_argument("--words", type=pathlib.Path, default=DATA / "words", help="folder of adjectives.txt and nouns.txt")
    parser.add_argument("--passkeys", type=int, default=10, help="of a document that has room for them")
    parser.add_argument("--values", choices=[*KINDS, "mixed"], default="mixed", help="what the passkeys are")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")


def load(args, sink: int, recent: int):
    """(model, HeadMix): weights frozen, on the device."""
    if not (args.model / "config.json").is_file():
        raise SystemExit(f"{args.model}: no config.json there; --model names a Hugging Face directory")
    config = AutoConfig.from_pretrained(args.model)
    if config.model_type not in FAMILIES:
        raise SystemExit(f"{args.model}: model type '{config.model_type}' is none of {', '.join(FAMILIES)}")
    mix = HeadMix(config.num_hidden_layers, config.num_attention_heads, sink, recent, args.device)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=DTYPES[args.dtype], attn_implementation=HeadMix.NAME)
    model = model.to(args.device).eval().requires_grad_(False)
    return model, mix


def make_maker(args) -> Maker:
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    for path in (args.haystack, args.words / "nouns.txt", args.words / "adjectives.txt"):
        if not path.is_file():
            raise SystemExit(f"{path}: no such file")
    haystack = Haystack(args.haystack.read_text(), tokenizer)
    kinds = KINDS if args.values == "mixed" else (args.values,)
    return Maker(tokenizer, haystack, read_words(args.words), args.passkeys, kinds)


def documents(maker: Maker, lengths, seed: int, threads: int = 4):
    """Yields a document for each length, made in advance by threads; the same documents for the same seed."""
    def make(index, length):
        return maker.make(length, random.Random(f"{seed} {index}"))

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        waiting = []
        for index, length in enumerate(lengths):
            waiting.append(pool.submit(make, index, length))
            if len(waiting) > 4 * threads:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def predicting(document, device):
    """(positions, tokens): the positions that predict the answers' tokens, and these tokens."""
    at = [t for begin, end in document.answers for t in range(begin, end)]
    return torch.tensor(at, device=device) - 1, torch.tensor([document.ids[t] for t in at], device=device)


def hidden_states(model, document):
    """Last hidden states [n, width], after the final norm."""
    ids = torch.tensor([document.ids], device=model.device)
    return model.model(input_ids=ids, use_cache=False).last_hidden_state[0]


def right_answers(model, document, hidden) -> list[bool]:
    """Whether each answer's tokens are all the most likely ones, given the right tokens before them.

    Greedy generation gives the same result, except that it would have to generate the earlier answers itself.
    """
    positions, tokens = predicting(document, hidden.device)
    right = (model.lm_head(hidden[positions]).argmax(-1) == tokens).tolist()
    sizes = [end - begin for begin, end in document.answers]
    return [all(right[sum(sizes[:i]):sum(sizes[:i + 1])]) for i in range(len(sizes))]


def fingerprint(folder: pathlib.Path) -> dict:
    """SHA-256 of the configuration and of the weight files in the order of their names."""
    weights = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin")):
        with open(file, "rb") as stream:
            while chunk := stream.read(1 << 24):
                weights.update(chunk)
    return {"name": folder.resolve().name, "config_sha256": hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
            "weights_sha256": weights.hexdigest()}


def write_table(path: pathlib.Path, alpha):
    """Writes one row per layer and one column per query head, separated by tabs."""
    path.write_text("".join("\t".join(f"{a:.6f}" for a in row) + "\n" for row in alpha.tolist()))


def read_table(path: pathlib.Path):
    return torch.tensor([[float(a) for a in line.split("\t")] for line in path.read_text().splitlines()])


def write_json(path: pathlib.Path, value):
    """Writes one line per field, and one per row of a list of objects."""
    rows = lambda v: "[\n  " + ",\n  ".join(map(json.dumps, v)) + "]"
    lines = [f" {json.dumps(k)}: " + (rows(v) if isinstance(v, list) and v and isinstance(v[0], dict) else json.dumps(v))
             for k, v in value.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")

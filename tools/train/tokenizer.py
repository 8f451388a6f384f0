"""Trains the byte-level BPE tokenizer and writes tokenizer.json, tokenizer_config.json.

Pre-tokenization is that of Qwen 2: words with one leading character, single digits (so that numbers
are copied digit by digit), runs of punctuation, newlines.
"""

import argparse
import json
import pathlib
import random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCABULARY = 4096
BOS, EOS, TURN, END, PAD = "<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>", "<|pad|>"
SPECIAL = [BOS, EOS, TURN, END, PAD]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train(texts) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, max_token_length=16, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 0)])
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder that sources.py wrote")
    parser.add_argument("--retrieval", type=pathlib.Path, nargs="*", default=[],
                        help="JSON lines of the retrieval generator, in key 'text'; or word lists")
    parser.add_argument("--characters", type=int, default=60_000_000)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    args = parser.parse_args()
    documents = json.loads((args.data / "train.json").read_text())
    random.Random(1).shuffle(documents)
    texts, total = [], 0
    for text in documents:
        texts.append(text[:300_000])
        total += len(texts[-1])
        if total > args.characters:
            break
    for path in args.retrieval:
        lines = path.read_text().splitlines()
        texts += [json.loads(line)["text"] for line in lines] if path.suffix == ".jsonl" else [" " + " ".join(lines)]
    tokenizer = train(texts)
    args.output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.output / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32768,
        "bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (args.output / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    sample = texts[0]
    ids = tokenizer.encode(sample).ids
    assert tokenizer.decode(ids) == sample, "the tokenizer must give the text back"
    print(f"{tokenizer.get_vocab_size()} entries, {len(sample) / len(ids):.2f} characters a token")


if __name__ == "__main__":
    main()

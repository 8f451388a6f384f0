"""Documents with passkeys hidden in a haystack, and questions for all of them at the end.

The wording is RULER's ("One of the special magic numbers for KEY is: VALUE."), as
`litecache eval generate` writes it; number, depth and length are DuoAttention's. Needs no torch.
"""

import bisect
import dataclasses
import itertools
import pathlib
import random
import uuid

NEEDLE = "One of the special magic {kind}s for {key} is: {value}."
HEADER = ("A special magic {kind} is hidden within the following text. Make sure to memorize it. "
          "I will quiz you about the {kind} afterwards.\n")
QUESTION = ("What is the special magic {kind} for {key} mentioned in the provided text? "
            "The special magic {kind} for {key} mentioned in the provided text is ")
KINDS = ("number", "uuid")
# The share of a document that needles and questions may fill; the rest is the haystack.
PASSKEY_SHARE = 0.6
SHALLOWEST, DEEPEST, DEPTH_STEPS = 0.05, 0.95, 1000


@dataclasses.dataclass
class Document:
    ids: list[int]
    # Tokens before the first question.
    context: int
    # Token ranges [begin, end) of the values in the questions' answers, in the order they are asked.
    answers: list[tuple[int, int]]
    # Where each asked value's needle begins, as a share of the haystack's tokens.
    depths: list[float]


class Haystack:
    """A text split into pieces (lines, or sentences if lines are long) with known token counts."""

    def __init__(self, text: str, tokenizer):
        lines = text.splitlines(keepends=True)
        if not text.strip():
            raise ValueError("the haystack holds no text")
        if len(text) > 400 * len(lines):
            lines = [s + " " for s in text.replace(".\n", ". ").split(". ")]
            lines = [s if s.rstrip().endswith(".") else s.rstrip() + ". " for s in lines]
        # Empty lines belong to the line before them, because some tokenizers have tokens of several newlines.
        self.pieces = []
        for line in lines:
            if line.strip() or not self.pieces:
                self.pieces.append(line)
            else:
                self.pieces[-1] += line
        if not self.pieces[-1].endswith(("\n", " ")):
            self.pieces[-1] += "\n"
        encoded = tokenizer("".join(self.pieces), add_special_tokens=False, return_offsets_mapping=True)
        starts = [begin for begin, _ in encoded["offset_mapping"]]
        ends = itertools.accumulate(map(len, self.pieces))
        self.ends = [bisect.bisect_left(starts, end) for end in ends]

    def window(self, tokens: int, rng: random.Random) -> list[tuple[str, int]]:
        """Pieces and their token counts, starting at a random one and wrapping around, at most `tokens` in all."""
        at, left, taken = rng.randrange(len(self.pieces)), tokens, []
        while True:
            size = self.ends[at] - (self.ends[at - 1] if at else 0)
            if size > left:
                return taken
            taken.append((self.pieces[at], size))
            left -= size
            at = (at + 1) % len(self.pieces)


def read_words(folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """(adjectives, nouns), the parts of keys."""
    return tuple((folder / f"{name}.txt").read_text().split() for name in ("adjectives", "nouns"))


def distinct(count: int, draw) -> list[str]:
    drawn = {}
    while len(drawn) < count:
        drawn[draw()] = None
    return list(drawn)


class Maker:
    """Makes documents of a requested length in tokens.

    `tokenizer` is a fast one of Transformers, `words` what read_words returns.
    """

    def __init__(self, tokenizer, haystack: Haystack, words, passkeys: int = 10, kinds=KINDS):
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError("a fast tokenizer is needed: it tells where in the text each token begins")
        self.tokenizer, self.haystack, self.words = tokenizer, haystack, words
        self.passkeys, self.kinds = passkeys, kinds
        rng = random.Random(0)
        sizes = {(kind, n): max(len(self._encode(*self._write(kind, n, [], rng)).ids) for _ in range(8))
                 for kind in kinds for n in (1, 5)}
        self.fixed = {kind: sizes[kind, 1] for kind in kinds}
        self.each = {kind: (sizes[kind, 5] - sizes[kind, 1]) / 4 for kind in kinds}

    def shortest(self) -> int:
        """The minimum length in tokens at which every kind of document fits."""
        return int(max(self.fixed.values()) / PASSKEY_SHARE) + 1

    def make(self, length: int, rng: random.Random) -> Document:
        """A document of at most `length` tokens, and only slightly shorter."""
        if length < self.shortest():
            raise ValueError(f"a document needs at least {self.shortest()} tokens, {length} were asked for")
        kind = rng.choice(self.kinds)
        room = PASSKEY_SHARE * length - self.fixed[kind]
        count = max(1, min(self.passkeys, 1 + int(room / self.each[kind])))
        budget = length - self.fixed[kind] - (count - 1) * self.each[kind]
        state = rng.getstate()
        while True:
            rng.setstate(state)
            pieces = self.haystack.window(int(budget), rng)
            document = self._encode(*self._write(kind, count, pieces, rng))
            if len(document.ids) <= length:
                return document
            budget -= len(document.ids) - length + 8
            if budget < 0:
                raise ValueError(f"{count} passkeys do not fit into {length} tokens")

    def _value(self, kind: str, rng: random.Random) -> str:
        if kind == "number":
            return str(rng.randrange(1_000_000, 10_000_000))
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))

    def _write(self, kind: str, count: int, pieces, rng: random.Random):
        """(text, characters before the questions, character ranges of the answers, depths)."""
        keys = distinct(count, lambda: f"{rng.choice(self.words[0])}-{rng.choice(self.words[1])}")
        pairs = list(zip(keys, distinct(count, lambda: self._value(kind, rng))))
        steps = sorted(rng.sample(range(DEPTH_STEPS), count))
        total = sum(size for _, size in pieces)
        parts, begun, next_needle, depth_of = [HEADER.format(kind=kind)], 0, 0, {}
        for text, size in [*pieces, ("", 0)]:
            while next_needle < count and (begun >= total or begun >= total * (
                    SHALLOWEST + (DEEPEST - SHALLOWEST) * steps[next_needle] / (DEPTH_STEPS - 1))):
                key, value = pairs[next_needle]
                parts.append(NEEDLE.format(kind=kind, key=key, value=value) + "\n")
                depth_of[key] = begun / max(total, 1)
                next_needle += 1
            parts.append(text)
            begun += size
        text = "".join(parts).rstrip("\n ") + "\n"
        context = len(text)
        rng.shuffle(pairs)
        spans = []
        for key, value in pairs:
            text += QUESTION.format(kind=kind, key=key)
            spans.append((len(text), len(text) + len(value)))
            text += value + ".\n"
        return text, context, spans, [depth_of[key] for key, _ in pairs]

    def _encode(self, text: str, context: int, spans, depths) -> Document:
        encoded = self.tokenizer(text, return_attention_mask=False)
        answers = [(encoded.char_to_token(begin), encoded.char_to_token(end - 1) + 1) for begin, end in spans]
        return Document(encoded["input_ids"], encoded.char_to_token(context), answers, depths)

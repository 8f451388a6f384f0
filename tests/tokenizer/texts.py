"""Texts on which tokenizers differ: code, many scripts, emoji, unusual spaces, control characters,
random code points, broken UTF-8, special tokens inside text."""

import glob
import os
import sysconfig

# (first, last) code points; frequently used ones come first.
SCRIPTS = [
    (0x20, 0x7E),
    (0xA0, 0x24F),  # Latin
    (0x300, 0x36F),  # combining marks
    (0x370, 0x52F),  # Greek, Cyrillic
    (0x590, 0x6FF),  # Hebrew, Arabic
    (0x900, 0xDFF),  # Indic scripts
    (0xE00, 0xEFF),  # Thai, Lao
    (0x1100, 0x11FF),  # Hangul Jamo
    (0x1E00, 0x1FFF),  # Latin and Greek with marks
    (0x2000, 0x206F),  # punctuation and format characters
    (0x2070, 0x2BFF),  # symbols
    (0x3000, 0x30FF),  # Japanese
    (0x4E00, 0x9FFF),  # ideographs
    (0xA640, 0xABFF),
    (0xAC00, 0xD7A3),  # Hangul
    (0xE000, 0xFFFF),  # private use, compatibility forms
    (0x10000, 0x11FFF),  # old scripts
    (0x16000, 0x1BFFF),
    (0x1D400, 0x1D7FF),  # mathematical letters
    (0x1F000, 0x1FAFF),  # emoji
    (0x20000, 0x323AF),
    (0xE0000, 0xE01EF),  # tags, variation selectors
]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\xa0", "\u1680", "\u180e"]
SPACES += ["\u2003", "\u2009", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "❤️", "1️⃣", "🫠", "👩🏿‍🚀", "☃", "🤷‍♀️"]
WORDS = (
    "the of and to Paris don't I'LL we've it's THEY'RE 'sup 'S 'ſ naïve Straße résumé Ǆungla ﬁne "
    "İstanbul 123 4567 3.14159 1,000,000 ٣٤٥ ४५६ Ⅷ ½ x² <s> </s> <unk> [INST] <|endoftext|> "
    "東京都 こんにちは 안녕하세요 Привет Γειά שלום مرحبا नमस्ते สวัสดี ԱԲԳ გამარჯობა ሰላም "
    "https://example.org/a?b=c&d=%20 user@host.tld C:\\path /usr/lib snake_case camelCase "
    "\u2581 \u2581\u2581x <0x0A> <0xE4> Ġthe ▁the // /* */ #include != === -> => :: && || ...... ----"
).split(" ")


def code_lines():
    """Lines of Python's standard library with their indentation."""
    files = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "*.py")))
    lines = []
    for path in files:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines.extend(file.read().split("\n"))
    return lines


class Texts:
    """Draws texts from `random`; `specials` are the tokenizer's added tokens."""

    def __init__(self, random, specials):
        self.random = random
        self.specials = specials or ["<s>"]
        self.code = code_lines()

    def one(self):
        random = self.random
        kind = random.random()
        if kind < 0.25:
            begin = random.randrange(len(self.code))
            return "\n".join(self.code[begin : begin + random.randint(1, 12)])
        if kind < 0.30:
            # Most of these bytes are not UTF-8.
            return self.bytes(random.randint(1, 60)).decode("utf-8", errors="replace")
        if kind < 0.35:
            return self.bytes(random.randint(1, 60)).decode("latin-1")
        if kind < 0.37:
            return random.choice([*SPACES, "a", "=", "的", "😀", "ab"]) * random.randint(1, 200)
        if kind < 0.38:
            # One long word, longer than words that are cached or merged in one heap.
            letters = random.choice(["a", "ab", "abc", " ", "_-", "etaoinshr", "的是了"])
            return "".join(random.choice(letters) for _ in range(random.randint(500, 4000)))
        return "".join(self.fragment() for _ in range(random.randint(0, 14)))

    def bytes(self, count):
        return bytes(self.random.randrange(256) for _ in range(count))

    def fragment(self):
        random = self.random
        kind = random.random()
        if kind < 0.30:
            return random.choice(WORDS) + random.choice(["", " ", " ", "  ", "\n", ".", ","])
        if kind < 0.55:
            first, last = random.choice(SCRIPTS)
            return "".join(chr(random.randint(first, last)) for _ in range(random.randint(1, 8)))
        if kind < 0.62:
            # Any code point, assigned or not, except surrogates.
            points = (random.randrange(0x110000 - 0x800) for _ in range(random.randint(1, 4)))
            return "".join(chr(p if p < 0xD800 else p + 0x800) for p in points)
        if kind < 0.75:
            return random.choice(SPACES) * random.choice([1, 1, 2, 3, random.randint(1, 20)])
        if kind < 0.80:
            return random.choice(EMOJI)
        if kind < 0.85:
            return "".join(chr(random.randrange(32)) for _ in range(random.randint(1, 3)))
        if kind < 0.90:
            return str(random.randrange(10 ** random.randint(1, 12)))
        special = random.choice(self.specials)
        if random.random() < 0.2:
            special = special[: random.randrange(len(special) + 1)]
        return special + random.choice(["", "", " ", "\n", "x"])

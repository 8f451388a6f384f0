"""The passkey documents of tools/importance: their contents, positions and lengths."""

import os
import pathlib
import random
import sys
import unittest

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "importance"))

from transformers import AutoTokenizer  # noqa: E402

import passkeys  # noqa: E402

SEED = int(os.environ.get("LC_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
TOKENIZER = AutoTokenizer.from_pretrained(ROOT / "models" / "litecache-demo-16m")
WORDS = passkeys.read_words(ROOT / "data" / "words")
TEXT = (ROOT / "data" / "haystack" / "python_stdlib.txt").read_text()
PROSE = "Ägir's sea was grey — cold, and full of names. " * 9000  # one long line with multi-byte characters


class PasskeysTest(unittest.TestCase):
    def check(self, maker, length, rng):
        document = maker.make(length, rng)
        text = TOKENIZER.decode(document.ids)
        context = text[:text.index("\nWhat is the special magic") + 1]
        self.assertEqual(TOKENIZER.decode(document.ids[:document.context]), context)
        self.assertLessEqual(len(document.ids), length)
        self.assertGreater(len(document.ids), 0.9 * length - 40)
        self.assertLessEqual(len(document.answers), maker.passkeys)
        last = 0
        for (begin, end), depth in zip(document.answers, document.depths, strict=True):
            self.assertGreaterEqual(begin, last)
            last = end
            value = TOKENIZER.decode(document.ids[begin:end]).strip()
            before = TOKENIZER.decode(document.ids[:begin]).rstrip()
            key = before.rsplit(" for ", 1)[1].split(" ", 1)[0]
            self.assertTrue(before.endswith(f"for {key} mentioned in the provided text is"), before[-200:])
            # Exactly one needle has the value, at the recorded depth.
            self.assertEqual(context.count(value), 1)
            self.assertEqual(context.count(f" for {key} is: {value}.\n"), 1)
            self.assertGreaterEqual(depth, passkeys.SHALLOWEST)
            self.assertLessEqual(depth, 1)
            place = context.index(value) / len(context)
            self.assertLess(abs(place - depth), 0.12 if length > 4000 else 0.5)
        return document

    def test_documents(self):
        for text in (TEXT, PROSE):
            haystack = passkeys.Haystack(text, TOKENIZER)
            maker = passkeys.Maker(TOKENIZER, haystack, WORDS)
            rng = random.Random(SEED)
            for length in [maker.shortest(), 1001, 16411] + [rng.randrange(maker.shortest(), 9000) for _ in range(12)]:
                with self.subTest(seed=SEED, length=length, code=text is TEXT):
                    document = self.check(maker, length, rng)
                    if length > 4000:
                        self.assertEqual(len(document.answers), 10)

    def test_the_seed_repeats_it(self):
        maker = passkeys.Maker(TOKENIZER, passkeys.Haystack(TEXT, TOKENIZER), WORDS, kinds=("uuid",))
        first, again, other = (maker.make(2000, random.Random(s)) for s in (SEED, SEED, SEED + 1))
        self.assertEqual(first, again)
        self.assertNotEqual(first.ids, other.ids)

    def test_too_short(self):
        maker = passkeys.Maker(TOKENIZER, passkeys.Haystack(TEXT, TOKENIZER), WORDS)
        with self.assertRaisesRegex(ValueError, "at least"):
            maker.make(maker.shortest() - 1, random.Random(SEED))
        with self.assertRaisesRegex(ValueError, "no text"):
            passkeys.Haystack(" \n", TOKENIZER)


if __name__ == "__main__":
    print(f"LC_TEST_SEED={SEED}")
    unittest.main()

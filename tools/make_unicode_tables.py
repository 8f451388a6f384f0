#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_tables.cc: the differences between the Unicode versions of the program's libraries
and that of the `tokenizers` package, found by testing both with every code point.

Run with a Python that has `tokenizers` (scripts/setup-test-python), and `cc`, libpcre2-dev and
libutf8proc-dev installed:

    build/test-python/bin/python tools/make_unicode_tables.py > src/tokenizer/unicode_tables.cc
"""

import subprocess
import sys
import tempfile

from tokenizers import Regex, __version__, normalizers, pre_tokenizers

CATEGORIES = (
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co"
).split()
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]

# One line per code point: its category for PCRE2; its category, lower case, combining class and four
# normal forms for utf8proc.
PROBE = r"""
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>
int main(int argc, char** argv) {
  const int forms[4] = {UTF8PROC_COMPOSE, UTF8PROC_DECOMPOSE, UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                        UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
  pcre2_code* codes[64];
  pcre2_match_data* data = pcre2_match_data_create(4, 0);
  int error;
  size_t where;
  char pattern[32];
  for (int i = 1; i < argc; ++i) {
    snprintf(pattern, sizeof pattern, "\\p{%s}", argv[i]);
    codes[i] = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                             &error, &where, 0);
    if (codes[i] == 0) return 1;
  }
  for (unsigned c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    unsigned char text[8];
    const int length = utf8proc_encode_char(c, text);
    const char* category = "Cn";
    for (int i = 1; i < argc; ++i) {
      if (pcre2_match(codes[i], text, length, 0, 0, data, 0) > 0) category = argv[i];
    }
    printf("%u %s %s %d %d", c, category, utf8proc_category_string(c), utf8proc_tolower(c),
           utf8proc_get_property(c)->combining_class);
    for (int k = 0; k < 4; ++k) {
      unsigned char* out;
      const long n = utf8proc_map(text, length, &out, UTF8PROC_STABLE | forms[k]);
      printf(" ");
      for (long i = 0; i < n; ++i) printf("%02x", out[i]);
      free(out);
    }
    printf("\n");
  }
  return 0;
}
"""


def probe():
    with tempfile.TemporaryDirectory() as folder:
        source = folder + "/probe.c"
        with open(source, "w") as file:
            file.write(PROBE)
        subprocess.run(
            ["cc", "-O1", source, "-o", folder + "/probe", "-lpcre2-8", "-lutf8proc"], check=True
        )
        lines = subprocess.run(
            [folder + "/probe", *CATEGORIES], check=True, capture_output=True, text=True
        ).stdout.splitlines()
    table = {}
    for line in lines:
        fields = line.split()
        table[int(fields[0])] = (fields[1], int(fields[4]), fields[5:], fields[2], int(fields[3]))
    return table


def matched_by_package(pattern):
    """Code points that match `pattern` in the package's regular expressions."""
    remove = normalizers.Replace(Regex(pattern), "")
    found = set()
    for i in range(0, len(CODE_POINTS), 4096):
        batch = CODE_POINTS[i : i + 4096]
        left = set(map(ord, remove.normalize_str("".join(map(chr, batch)))))
        found.update(c for c in batch if c not in left)
    return found


def predicates(table):
    """Name -> (class of each code point in the package, class by utf8proc's categories)."""
    strip = normalizers.StripAccents()
    numeric = pre_tokenizers.Digits(individual_digits=True)
    punctuation = pre_tokenizers.Punctuation("removed")
    space = pre_tokenizers.WhitespaceSplit()
    word = pre_tokenizers.Whitespace()
    letters = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"}
    ascii_symbols = set(map(ord, "$+<=>^`|~"))

    def category(c):
        return table[c][3]

    return {
        "Mark": (
            lambda c: strip.normalize_str(chr(c)) == "",
            lambda c: category(c)[0] == "M",
        ),
        "Numeric": (
            lambda c: len(numeric.pre_tokenize_str("a" + chr(c))) == 2,
            lambda c: category(c)[0] == "N",
        ),
        "Punctuation": (
            lambda c: punctuation.pre_tokenize_str(chr(c)) == [],
            lambda c: category(c)[0] == "P" or c in ascii_symbols,
        ),
        "Whitespace": (
            lambda c: space.pre_tokenize_str(chr(c)) == [],
            lambda c: category(c)[0] == "Z" or 9 <= c <= 13 or c == 0x85,
        ),
        "Word": (
            lambda c: [part for part, _ in word.pre_tokenize_str("a" + chr(c))] == ["a" + chr(c)],
            lambda c: category(c) in letters,
        ),
    }


def ranges(values):
    """Sorted [(first, last, value)] of a dict {code point: value}."""
    out = []
    for c in sorted(values):
        if out and out[-1][1] == c - 1 and out[-1][2] == values[c]:
            out[-1][1] = c
        else:
            out.append([c, c, values[c]])
    return out


def main():
    table = probe()
    package_category = {}
    for category in CATEGORIES:
        for c in matched_by_package(r"\p{%s}" % category):
            package_category[c] = category
    han = matched_by_package(r"\p{Han}")

    def stand_in(c):
        """An old character of the same category and UTF-8 length."""
        if c in han and c >= 0x10000:
            return 0x20000
        low, high = (0x800, 0x10000) if c < 0x10000 else (0x10000, 0x110000)
        if c < 0x800:
            raise SystemExit(f"U+{c:04X}: two-byte characters were not expected to differ")
        wanted = package_category[c]
        for d in range(low, high):
            if package_category.get(d) == wanted and table.get(d, ("",))[0] == wanted:
                return d
        # No four-byte character of this category is old enough: in all patterns seen so far the category's first letter
        # decides.
        for d in range(low, high):
            other = package_category.get(d, "")
            if other[:1] == wanted[:1] and table[d][0] == other:
                return d
        raise SystemExit(f"U+{c:04X}: no stand-in for {wanted}")

    differing = {
        c: stand_in(c)
        for c, category in package_category.items()
        if c in table and table[c][0] != category
    }
    # PCRE2 counts U+180E (Mongolian vowel separator) as white space; Unicode has not since 6.3.
    differing[0x180E] = 0x200B

    forms = [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()]
    inert = {}
    for c, (_, combining_class, ours, _, _) in table.items():
        theirs = [form.normalize_str(chr(c)).encode().hex() for form in forms]
        if theirs != ours:
            inert[c] = True
        elif combining_class and ours[1] == chr(c).encode().hex():
            # A reordered mark shows that the package knows its combining class.
            text = "a\u0345" + chr(c)
            expected = "a" + chr(c) + "\u0345" if combining_class < 240 else text
            if forms[1].normalize_str(text) != expected:
                inert[c] = True
    for c in inert:
        if table[c][2][1] != chr(c).encode().hex() or table[c][1]:
            continue
        if [form.normalize_str(chr(c)) for form in forms] != [chr(c)] * 4:
            raise SystemExit(f"U+{c:04X}: the package normalizes what utf8proc does not")

    exceptions = {}
    for name, (theirs, ours) in predicates(table).items():
        exceptions[name] = {c: True for c in table if theirs(c) != ours(c)}
    lowercase = normalizers.Lowercase()
    lower = {}
    for c in table:
        theirs = lowercase.normalize_str(chr(c))
        if theirs == chr(table[c][4]):
            continue
        if len(theirs) == 1:
            lower[c] = ord(theirs)
        elif c != 0x130:
            raise SystemExit(f"U+{c:04X}: lower case of several characters")

    out = sys.stdout
    out.write(f"""// Generated by tools/make_unicode_tables.py against tokenizers {__version__}; do not edit.
#include "tokenizer/unicode_tables.h"

namespace litecache::tokenizer {{
namespace {{

// clang-format off
constexpr StandInRange kStandIns[] = {{
""")
    for first, last, value in ranges(differing):
        out.write(f"    {{0x{first:X}, 0x{last:X}, 0x{value:X}}},\n")
    out.write("};\n\nconstexpr CodePointRange kInert[] = {\n")
    for first, last, _ in ranges(inert):
        out.write(f"    {{0x{first:X}, 0x{last:X}}},\n")
    for name, members in exceptions.items():
        # An array cannot be empty; the last range contains no code point.
        out.write(f"}};\n\nconstexpr CodePointRange k{name}[] = {{\n")
        for first, last, _ in ranges(members):
            out.write(f"    {{0x{first:X}, 0x{last:X}}},\n")
        out.write("    {0x110000, 0x110000},\n")
    out.write("};\n\nconstexpr LowerCase kLower[] = {\n")
    for c, to in lower.items():
        out.write(f"    {{0x{c:X}, 0x{to:X}}},\n")
    out.write("""};
// clang-format on

}  // namespace

std::span<const StandInRange> StandInRanges() { return kStandIns; }
std::span<const CodePointRange> NormalizationInertRanges() { return kInert; }
std::span<const CodePointRange> MarkExceptions() { return kMark; }
std::span<const CodePointRange> NumericExceptions() { return kNumeric; }
std::span<const CodePointRange> PunctuationExceptions() { return kPunctuation; }
std::span<const CodePointRange> WhitespaceExceptions() { return kWhitespace; }
std::span<const CodePointRange> WordExceptions() { return kWord; }
std::span<const LowerCase> LowerCaseExceptions() { return kLower; }

}  // namespace litecache::tokenizer
""")


if __name__ == "__main__":
    main()

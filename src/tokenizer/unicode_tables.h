// Differences between the Unicode versions of PCRE2 and utf8proc and those of the `tokenizers`
// package.
#pragma once

#include <span>

namespace litecache::tokenizer {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

// Characters that PCRE2 10.42 (Unicode 14) classifies differently from the package's engine
// (Unicode 16), each with an older character of the same category and UTF-8 length that both
// classify alike.
struct StandInRange {
  char32_t first;
  char32_t last;
  char32_t stand_in;
};

// Both sorted by `first`, without overlaps.
std::span<const StandInRange> StandInRanges();

// Characters that utf8proc normalizes or reorders and the package (Unicode 10 data) leaves
// unchanged.
std::span<const CodePointRange> NormalizationInertRanges();

// Characters whose class in the package differs from that by utf8proc's categories: the package
// takes its classes from libraries of several Unicode versions.
std::span<const CodePointRange> MarkExceptions();         // against M*
std::span<const CodePointRange> NumericExceptions();      // against N*
std::span<const CodePointRange> PunctuationExceptions();  // against P* and ASCII symbols
std::span<const CodePointRange> WhitespaceExceptions();   // against Z*, U+0009..000D, U+0085
std::span<const CodePointRange> WordExceptions();         // against L*, M*, Nd, Nl, Pc

struct LowerCase {
  char32_t from;
  char32_t to;
};

// Sorted; characters whose lower case in utf8proc differs.
std::span<const LowerCase> LowerCaseExceptions();

}  // namespace litecache::tokenizer

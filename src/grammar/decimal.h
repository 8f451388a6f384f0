// Numbers between bounds, written as texts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "grammar/automaton.h"

namespace litecache::grammar {

// The digits of a decimal number: 0.05 is {"0", "05"}.
struct Decimal {
  bool negative = false;
  std::string whole;     // without leading zeros; "0"
  std::string fraction;  // without trailing zeros
};

// Parses the text of a JSON number, including exponents. nullopt for more than 40 digits.
std::optional<Decimal> ParseDecimal(std::string_view text);

struct NumberBounds {
  std::optional<Decimal> low, high;
  bool low_excluded = false, high_excluded = false;
  // Maximum number of digits after the point; 0: integers.
  int fraction_digits = 0;

  bool bounded() const { return low || high; }
};

// Digits of unbounded numbers: enough for 64-bit integers and doubles, and a limit for a model that
// would not stop.
inline constexpr int kWholeDigits = 18;
inline constexpr int kFractionDigits = 17;

// Writes the JSON numbers within the bounds between two states, without exponents; zero has no
// sign.
void WriteNumber(AutomatonBuilder* builder, StateId from, const NumberBounds& bounds, StateId to);

}  // namespace litecache::grammar

#include "grammar/decimal.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>
#include <vector>

namespace litecache::grammar {
namespace {

constexpr size_t kMaxDigits = 40;

// Unsigned numbers between two bounds: whole digits and a fraction.
class MagnitudeWriter {
 public:
  MagnitudeWriter(AutomatonBuilder* builder, const Decimal& low, bool low_excluded,
                  const Decimal& high, bool high_excluded, int fraction_digits, StateId to)
      : builder_(*builder),
        low_(low),
        high_(high),
        low_excluded_(low_excluded),
        high_excluded_(high_excluded),
        fraction_digits_(fraction_digits),
        to_(to) {}

  void Write(StateId from) {
    // For each number of whole digits the bounds are narrowed to that length; 0 is the only number
    // that begins with a zero.
    for (size_t digits = low_.whole.size(); digits <= high_.whole.size(); ++digits) {
      const bool at_low = digits == low_.whole.size(), at_high = digits == high_.whole.size();
      Decimal low = low_, high = high_;
      if (!at_low) low = {false, "1" + std::string(digits - 1, '0'), ""};
      if (!at_high) high = {false, std::string(digits, '9'), ""};
      states_.clear();
      lowest_ = low.whole + low.fraction;
      highest_ = high.whole + high.fraction;
      exclude_low_ = at_low && low_excluded_;
      exclude_high_ = at_high && high_excluded_;
      bound_high_ = at_high;
      digits_ = digits;
      Continue(from, 0, true, true);
    }
  }

 private:
  static char At(const std::string& digits, size_t i) {
    return i < digits.size() ? digits[i] : '0';
  }
  static bool ZerosFrom(const std::string& digits, size_t i) {
    return i >= digits.size() || digits.find_first_not_of('0', i) == std::string::npos;
  }

  // Whether the number may end before digit i.
  bool Ends(size_t i, bool low, bool high) const {
    if (low && (!ZerosFrom(lowest_, i) || exclude_low_)) return false;
    return !(high && exclude_high_ && ZerosFrom(highest_, i));
  }

  // Adds the edges of a state before digit i. `low`, `high`: the digits so far equal those of the
  // bound.
  void Continue(StateId state, size_t i, bool low, bool high) {
    if (i == digits_) {
      if (Ends(i, low, high)) builder_.Jump(state, to_);
      if (fraction_digits_ == 0) return;
      const StateId point = builder_.Add();
      builder_.Byte(state, '.', point);
      state = point;
    } else if (i > digits_ && Ends(i, low, high)) {
      builder_.Jump(state, to_);
    }
    if (i >= digits_ + static_cast<size_t>(fraction_digits_)) return;
    // For a shorter length the upper bound is all nines, which does not limit the fraction.
    const bool below = high && (bound_high_ || i < digits_);
    const char first = low ? At(lowest_, i) : '0';
    const char last = below ? At(highest_, i) : '9';
    for (char digit = first; digit <= last;) {
      const bool still_low = low && digit == first, still_high = below && digit == last;
      char end = digit;
      while (!still_low && !still_high && end < last && !(below && end + 1 == last)) ++end;
      const auto key = std::make_tuple(i + 1, still_low, still_high);
      const auto [found, added] = states_.try_emplace(key, 0);
      if (added) found->second = builder_.Add();
      const StateId next = found->second;
      builder_.Bytes(state, static_cast<uint8_t>(digit), static_cast<uint8_t>(end), next);
      if (added) Continue(next, i + 1, still_low, still_high);
      digit = static_cast<char>(end + 1);
    }
  }

  AutomatonBuilder& builder_;
  Decimal low_, high_;
  bool low_excluded_, high_excluded_;
  int fraction_digits_;
  StateId to_;

  std::map<std::tuple<size_t, bool, bool>, StateId> states_;
  std::string lowest_, highest_;
  bool exclude_low_ = false, exclude_high_ = false, bound_high_ = false;
  size_t digits_ = 0;
};

bool IsZero(const Decimal& value) { return value.whole == "0" && value.fraction.empty(); }

int Compare(const Decimal& a, const Decimal& b) {  // compares magnitudes
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole); order != 0) return order;
  return a.fraction.compare(b.fraction);
}

void WriteMagnitudes(AutomatonBuilder* builder, StateId from, const Decimal& low, bool low_excluded,
                     const Decimal& high, bool high_excluded, int fraction_digits, StateId to) {
  const int order = Compare(low, high);
  if (order > 0 || (order == 0 && (low_excluded || high_excluded))) return;
  MagnitudeWriter(builder, low, low_excluded, high, high_excluded, fraction_digits, to).Write(from);
}

}  // namespace

std::optional<Decimal> ParseDecimal(std::string_view text) {
  Decimal result;
  if (text.starts_with('-')) {
    result.negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view digits = text.substr(e + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    text = text.substr(0, e);
  }
  if (std::abs(exponent) > static_cast<int>(kMaxDigits) || text.size() > kMaxDigits) {
    return std::nullopt;
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string whole(text.substr(0, point));
  std::string fraction(text.substr(std::min(point + 1, text.size())));
  for (; exponent > 0; --exponent) {
    whole += fraction.empty() ? '0' : fraction[0];
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    fraction.insert(fraction.begin(), whole.empty() ? '0' : whole.back());
    if (!whole.empty()) whole.pop_back();
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  if (whole.empty()) whole = "0";
  fraction.erase(fraction.find_last_not_of('0') + 1);
  result.whole = std::move(whole);
  result.fraction = std::move(fraction);
  if (IsZero(result)) result.negative = false;
  return result;
}

void WriteNumber(AutomatonBuilder* builder, StateId from, const NumberBounds& bounds, StateId to) {
  const Decimal zero = {false, "0", ""};
  const Decimal most = {false, std::string(kWholeDigits, '9'), ""};
  const Decimal least = {true, std::string(kWholeDigits, '9'), ""};
  const Decimal low = bounds.low.value_or(least), high = bounds.high.value_or(most);
  if (!high.negative) {
    const bool from_zero = low.negative;
    WriteMagnitudes(builder, from, from_zero ? zero : low, !from_zero && bounds.low_excluded, high,
                    bounds.high_excluded, bounds.fraction_digits, to);
  }
  if (low.negative) {
    const StateId minus = builder->Add();
    builder->Byte(from, '-', minus);
    const bool to_zero = !high.negative;
    WriteMagnitudes(builder, minus, to_zero ? zero : high, to_zero || bounds.high_excluded, low,
                    bounds.low_excluded, bounds.fraction_digits, to);
  }
}

}  // namespace litecache::grammar

#include "eval/longbench/edit_ratio.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "eval/python_text.h"

namespace litecache::eval {
namespace {

struct Block {
  size_t a = 0;
  size_t b = 0;
  size_t size = 0;
};

struct Range {
  size_t a_begin;
  size_t a_end;
  size_t b_begin;
  size_t b_end;
};

class Matcher {
 public:
  Matcher(std::u32string a, std::u32string b)
      : a_(std::move(a)), b_(std::move(b)), length_(b_.size() + 1), next_length_(b_.size() + 1) {
    for (size_t j = 0; j < b_.size(); ++j) places_[b_[j]].push_back(j);
    constexpr size_t kLong = 200;
    if (b_.size() >= kLong) {
      const size_t most = b_.size() / 100 + 1;
      std::erase_if(places_, [&](const auto& entry) { return entry.second.size() > most; });
    }
  }

  // Total number of characters in matching blocks.
  size_t Matching() {
    size_t total = 0;
    std::vector<Range> open = {{0, a_.size(), 0, b_.size()}};
    while (!open.empty()) {
      const Range range = open.back();
      open.pop_back();
      const Block best = Longest(range);
      if (best.size == 0) continue;
      total += best.size;
      if (range.a_begin < best.a && range.b_begin < best.b) {
        open.push_back({range.a_begin, best.a, range.b_begin, best.b});
      }
      if (best.a + best.size < range.a_end && best.b + best.size < range.b_end) {
        open.push_back({best.a + best.size, range.a_end, best.b + best.size, range.b_end});
      }
    }
    return total;
  }

 private:
  // The longest common block; ties go to the first in a, then the first in b.
  Block Longest(const Range& range) {
    Block best = {range.a_begin, range.b_begin, 0};
    // length_[j + 1]: length of the block that ends at the previous character of a and at b[j].
    // Only the entries in `touched` are non-zero.
    std::vector<size_t> touched;
    std::vector<size_t> next_touched;
    for (size_t i = range.a_begin; i < range.a_end; ++i) {
      next_touched.clear();
      if (const auto found = places_.find(a_[i]); found != places_.end()) {
        for (const size_t j : found->second) {
          if (j < range.b_begin) continue;
          if (j >= range.b_end) break;
          const size_t size = length_[j] + 1;
          next_length_[j + 1] = size;
          next_touched.push_back(j + 1);
          if (size > best.size) best = {i + 1 - size, j + 1 - size, size};
        }
      }
      for (const size_t j : touched) length_[j] = 0;
      length_.swap(next_length_);
      touched.swap(next_touched);
    }
    for (const size_t j : touched) length_[j] = 0;
    // Frequent characters start no block, but a block may extend over them.
    while (best.a > range.a_begin && best.b > range.b_begin && a_[best.a - 1] == b_[best.b - 1]) {
      best = {best.a - 1, best.b - 1, best.size + 1};
    }
    while (best.a + best.size < range.a_end && best.b + best.size < range.b_end &&
           a_[best.a + best.size] == b_[best.b + best.size]) {
      ++best.size;
    }
    return best;
  }

  std::u32string a_;
  std::u32string b_;
  std::unordered_map<char32_t, std::vector<size_t>> places_;  // positions in b, ascending
  std::vector<size_t> length_;
  std::vector<size_t> next_length_;
};

}  // namespace

double EditRatio(std::string_view a, std::string_view b) {
  if (a == b) return 1;
  if (a.empty() || b.empty()) return 0;
  std::u32string first = ToCodePoints(a);
  std::u32string second = ToCodePoints(b);
  const auto characters = static_cast<double>(first.size() + second.size());
  const auto matching =
      static_cast<double>(Matcher(std::move(first), std::move(second)).Matching());
  // This order of operations, and rounding half to even, give the same percentages as Python.
  return std::nearbyint(100 * (2.0 * matching / characters)) / 100;
}

}  // namespace litecache::eval

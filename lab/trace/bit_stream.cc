#include "lab/trace/bit_stream.h"

#include "base/error.h"

namespace litecache::lab {
namespace {

constexpr int kShiftBits = 4;        // of a list's k
constexpr uint32_t kMostUnary = 20;  // ones, after which all bits of the number follow
constexpr int kWholeBits = 30;

uint64_t Length(uint32_t number, int shift) {
  const uint32_t high = number >> shift;
  return high < kMostUnary ? high + 1 + static_cast<uint32_t>(shift) : kMostUnary + kWholeBits;
}

}  // namespace

void BitWriter::Put(uint32_t value, int bits) {
  for (int bit = bits - 1; bit >= 0; --bit) {
    if (used_ == 8) {
      bytes_.push_back(0);
      used_ = 0;
    }
    const auto set = static_cast<unsigned>(value >> bit & 1) << (7 - used_++);
    bytes_.back() = static_cast<char>(static_cast<unsigned char>(bytes_.back()) | set);
  }
}

void BitWriter::PutList(std::span<const uint32_t> numbers) {
  if (numbers.empty()) return;
  int best = 0;
  uint64_t least = UINT64_MAX;
  for (int shift = 0; shift < 1 << kShiftBits; ++shift) {
    uint64_t length = 0;
    for (const uint32_t number : numbers) length += Length(number, shift);
    if (length < least) {
      best = shift;
      least = length;
    }
  }
  Put(static_cast<uint32_t>(best), kShiftBits);
  for (const uint32_t number : numbers) {
    LC_CHECK(number < 1u << kWholeBits);
    const uint32_t high = number >> best;
    if (high < kMostUnary) {
      Put((1u << (high + 1)) - 2, static_cast<int>(high) + 1);
      Put(number, best);
    } else {
      Put((1u << kMostUnary) - 1, kMostUnary);
      Put(number, kWholeBits);
    }
  }
}

uint32_t BitReader::Take(int bits, const char* part) {
  if (static_cast<uint64_t>(bits) > left()) {
    throw FileError("{}: ends within '{}'", name_, part);
  }
  uint32_t value = 0;
  for (; bits > 0; --bits, ++at_) {
    const auto byte = static_cast<uint32_t>(bytes_[static_cast<size_t>(at_ / 8)]);
    value = value << 1 | (byte >> (7 - at_ % 8) & 1);
  }
  return value;
}

std::vector<uint32_t> BitReader::TakeList(uint64_t count, const char* part) {
  std::vector<uint32_t> numbers;
  if (count == 0) return numbers;
  // Each takes at least one bit: checked before memory is allocated.
  if (count > left()) {
    throw FileError("{}: ends within '{}': {} bits are there, {} numbers are needed", name_, part,
                    left(), count);
  }
  const auto shift = static_cast<int>(Take(kShiftBits, part));
  numbers.reserve(static_cast<size_t>(count));
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t high = 0;
    while (high < kMostUnary && Take(1, part) == 1) ++high;
    numbers.push_back(high < kMostUnary ? high << shift | Take(shift, part)
                                        : Take(kWholeBits, part));
  }
  return numbers;
}

void BitReader::ExpectEnd() const {
  if (left() >= 8) throw FileError("{}: {} bytes follow its end", name_, left() / 8);
}

}  // namespace litecache::lab

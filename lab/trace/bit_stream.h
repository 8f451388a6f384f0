// A trace's lists of small numbers, in Rice codes: a number x is x >> k in unary and its last k
// bits, with the k that makes its list shortest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lab/namespaces.h"

namespace litecache::lab {

class BitWriter {
 public:
  // The last `bits` of value; bits <= 32.
  void Put(uint32_t value, int bits);
  // Numbers below 2^30; their count is not stored.
  void PutList(std::span<const uint32_t> numbers);
  // The bytes so far, the last one filled with zeros.
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  int used_ = 8;  // bits of the last byte
};

class BitReader {
 public:
  // name: of the file, for errors.
  BitReader(std::span<const std::byte> bytes, const std::string& name)
      : bytes_(bytes), name_(name) {}

  // Throw FileErrors that name `part` where bits are missing or make no number.
  uint32_t Take(int bits, const char* part);
  std::vector<uint32_t> TakeList(uint64_t count, const char* part);
  // Throws a FileError unless only the last byte's filling is left.
  void ExpectEnd() const;

 private:
  uint64_t left() const { return 8 * bytes_.size() - at_; }

  std::span<const std::byte> bytes_;
  const std::string& name_;
  uint64_t at_ = 0;  // the next bit
};

}  // namespace litecache::lab

// What a test's layer of policy litecache consists of, and the pages of its tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/common/row_format.h"

namespace litecache::ops::cuda {

using Random = std::mt19937_64;

inline int32_t Uniform(Random& random, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(random);
}

// The pages of one table of one sequence, in random order in one block of memory.
struct TestPages {
  Buffer buffer;
  int64_t lists = 0, blocks = 0;
  size_t page_bytes = 0;
  std::vector<int64_t> order;
  std::vector<std::byte> mirror;

  std::byte* Device(int64_t list, int64_t block) const {
    return buffer.as<std::byte>() + Offset(list, block);
  }
  std::byte* Host(int64_t list, int64_t block) { return mirror.data() + Offset(list, block); }
  std::vector<std::byte*> HostList(int64_t list) {
    std::vector<std::byte*> pages;
    for (int64_t b = 0; b < blocks; ++b) pages.push_back(Host(list, b));
    return pages;
  }

 private:
  size_t Offset(int64_t list, int64_t block) const {
    return static_cast<size_t>(order[static_cast<size_t>(block * lists + list)]) * page_bytes;
  }
};

struct LiteCacheCase {
  int32_t kv_heads = 2, group = 4, head_dim = 64;
  int32_t sink = 4, recent = 16, carry = 8;
  double share = 0.1;
  int32_t tokens = 0;
  double slots_factor = 1;
  RowEncoding encoding = RowEncoding::kBF16, store = RowEncoding::kBF16;
  bool by_need = false;           // selections take the rows that are needed
  bool codes = false;             // cached slots keep the store's codes, if it has codes
  std::vector<int32_t> past;      // of each sequence
  std::vector<int32_t> resident;  // heads
  std::vector<int32_t> dense;     // of these
  int32_t growth = 1;             // tokens the sequences may grow by
  int64_t metadata_token_bytes = 0, metadata_page_tokens = 256;
  bool rows = true;  // false: no rows, for long contexts with only metadata

  std::string Name() const {
    std::string name = "group " + std::to_string(group) + ", head_dim " + std::to_string(head_dim) +
                       ", share " + std::to_string(share) + ", tokens " + std::to_string(tokens) +
                       ", slots " + std::to_string(slots_factor) + (codes ? " of codes" : "") +
                       ", past";
    for (int32_t p : past) name += " " + std::to_string(p);
    return name;
  }
};

}  // namespace litecache::ops::cuda

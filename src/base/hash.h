// A hash that is the same on every platform and in every release.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace litecache {

// FNV-1a of bytes; `hash` continues an earlier one.
constexpr uint64_t Fnv1a(std::string_view bytes, uint64_t hash = 0xcbf29ce484222325u) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// A hash of numbers that depends on their order. Addresses and sizes differ in few bits, so sums or
// exclusive ors of different lists would soon collide.
constexpr uint64_t HashOf(std::initializer_list<uint64_t> values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint64_t value : values) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace litecache

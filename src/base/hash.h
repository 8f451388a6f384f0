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

// Of numbers, in their order: addresses and sizes have few bits of their own, and what a sum or an
// exclusive or of them says of two lists is soon the same.
constexpr uint64_t HashOf(std::initializer_list<uint64_t> values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint64_t value : values) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace litecache

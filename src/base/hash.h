// A hash that is the same on every platform and in every release.
#pragma once

#include <cstdint>
#include <string_view>

namespace litecache {

// FNV-1a of bytes; `hash` continues an earlier one.
constexpr uint64_t Fnv1a(std::string_view bytes, uint64_t hash = 0xcbf29ce484222325u) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace litecache

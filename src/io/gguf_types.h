// What readers and writers of GGUF have in common.
#pragma once

#include <cstdint>
#include <string_view>

namespace litecache::io {

inline constexpr std::string_view kGgufMagic = "GGUF";
inline constexpr uint64_t kGgufAlignment = 32;  // of tensors, where a file does not say

// Types of metadata, by their numbers.
enum GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

}  // namespace litecache::io

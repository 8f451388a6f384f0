// Builds valid and invalid safetensors files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace litecache::testing {

// Header length, header, data; the length may be wrong.
inline std::string SafetensorsWithLength(uint64_t length, std::string_view header,
                                         std::string_view data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>((length >> (8 * i)) & 0xff);
  bytes += header;
  bytes += data;
  return bytes;
}

inline std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  return SafetensorsWithLength(header.size(), header, data);
}

}  // namespace litecache::testing

// Builds valid and invalid GGUF files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::testing {

// A number as the file has it.
template <typename T>
std::string Little(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

inline std::string GgufText(std::string_view text) {
  return Little(uint64_t{text.size()}) + std::string(text);
}

class GgufBytes {
 public:
  // Types of metadata.
  enum Type : uint32_t { kU8 = 0, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kText = 8, kArray = 9 };

  GgufBytes& Key(std::string_view key, uint32_t type, const std::string& value) {
    metadata_ += GgufText(key) + Little(type) + value;
    ++keys_;
    return *this;
  }
  GgufBytes& Number(std::string_view key, uint32_t value) { return Key(key, kU32, Little(value)); }
  GgufBytes& Float(std::string_view key, float value) { return Key(key, kF32, Little(value)); }
  GgufBytes& Text(std::string_view key, std::string_view value) {
    return Key(key, kText, GgufText(value));
  }
  // `elements`: their bytes; the count may be wrong.
  GgufBytes& Array(std::string_view key, uint32_t type, uint64_t count,
                   const std::string& elements) {
    return Key(key, kArray, Little(type) + Little(count) + elements);
  }
  GgufBytes& Texts(std::string_view key, const std::vector<std::string>& texts) {
    std::string elements;
    for (const std::string& text : texts) elements += GgufText(text);
    return Array(key, kText, texts.size(), elements);
  }
  // dimensions: the row's length first, as in the file.
  GgufBytes& Tensor(std::string_view name, const std::vector<uint64_t>& dimensions, uint32_t type,
                    uint64_t offset) {
    table_ += GgufText(name) + Little(static_cast<uint32_t>(dimensions.size()));
    for (const uint64_t extent : dimensions) table_ += Little(extent);
    table_ += Little(type) + Little(offset);
    ++tensors_;
    return *this;
  }

  std::string Front(uint32_t version = 3) const {
    return "GGUF" + Little(version) + Little(tensors_) + Little(keys_) + metadata_ + table_;
  }
  // The front, padding and `data`.
  std::string Build(const std::string& data = "", size_t alignment = 32) const {
    std::string bytes = Front();
    if (!data.empty()) bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    return bytes + data;
  }

 private:
  std::string metadata_, table_;
  uint64_t keys_ = 0, tensors_ = 0;
};

}  // namespace litecache::testing

// Writes a GGUF file (gguf.h), version 3.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf_types.h"
#include "io/tensor_writer.h"

namespace litecache::io {

// Where a model cannot be written as GGUF: what to do instead.
inline constexpr std::string_view kWriteDirectory =
    "quantize into a directory instead (an --output without .gguf)";

// Keys in the order in which they are added.
class GgufMetadata {
 public:
  void AddText(std::string_view key, std::string_view value);
  void AddInt(std::string_view key, int64_t value);  // uint32, as llama.cpp reads counts and ids
  void AddFloat(std::string_view key, double value);
  void AddBool(std::string_view key, bool value);
  void AddTexts(std::string_view key, std::span<const std::string> values);
  void AddInts(std::string_view key, std::span<const int32_t> values);
  void AddFloats(std::string_view key, std::span<const float> values);

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void AddKey(std::string_view key, GgufType type);
  void AddArray(std::string_view key, GgufType type, size_t count);

  uint64_t count_ = 0;
  std::string bytes_;
};

// dtype: a name of BlockFormat. Tensors are in the file in their order here, as llama.cpp requires.
class GgufFile final : public TensorWriter {
 public:
  GgufFile(const std::filesystem::path& path, const GgufMetadata& metadata,
           const std::vector<Tensor>& tensors);
};

}  // namespace litecache::io

// Writes safetensors files: small ones, whose tensors are in memory, and large ones in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "io/tensor_writer.h"

namespace litecache::io {

class SafetensorsWriter {
 public:
  // Stores values as `dtype` (f32, f16 or bf16, rounded to nearest). values.size() is the product
  // of `shape`. Throws InvalidArgument naming the tensor for a value that `dtype` cannot hold: not
  // finite, or beyond its range.
  void Add(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
           std::span<const float> values);
  // Sets a text of "__metadata__".
  void SetMetadata(const std::string& key, const std::string& value) { metadata_[key] = value; }

  // The whole file. Tensors are in the order of Add(), the first at a multiple of 8 bytes. The same
  // tensors give the same bytes.
  std::string Bytes() const;
  // Writes atomically (WriteFileAtomically).
  void Write(const std::filesystem::path& path) const;

 private:
  struct Tensor {
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    size_t begin = 0;
    size_t end = 0;
  };
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::string data_;
};

class SafetensorsFile final : public TensorWriter {
 public:
  // Writes the header, with {"format": "pt"}, which Transformers requires.
  SafetensorsFile(const std::filesystem::path& path, std::vector<Tensor> tensors);
};

}  // namespace litecache::io

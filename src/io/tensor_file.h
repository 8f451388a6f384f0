// A memory-mapped file of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/mapped_file.h"

namespace litecache::io {

// A tensor's location, checked against the size of its file.
struct TensorInfo {
  std::string dtype;  // "F32", "F16", "BF16", "I64", "Q4_K", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // offset in bytes from the start of the file
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  // "BF16 [2048, 512]"
  std::string ToString() const;
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;

  const MappedFile& file() const { return file_; }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::byte* Data(const TensorInfo& tensor) const { return file_.data() + tensor.begin; }

 protected:
  explicit TensorFile(const std::filesystem::path& path) : file_(path) {}

  MappedFile file_;
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace litecache::io

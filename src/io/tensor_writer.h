// Writes a file of tensors in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace litecache::io {

// A file whose tensors are known before their values are, which are written in any order.
class TensorWriter {
 public:
  struct Tensor {
    std::string name, dtype;  // "I32"
    std::vector<int64_t> shape;
    uint64_t bytes = 0;
  };

  virtual ~TensorWriter();
  TensorWriter(const TensorWriter&) = delete;
  TensorWriter& operator=(const TensorWriter&) = delete;

  // Writes a part of a tensor, `offset` bytes behind its beginning.
  void Write(const std::string& name, uint64_t offset, std::span<const std::byte> bytes);
  // Flushes to the disk; some file systems report a full one only here.
  void Close();

 protected:
  // Creates or truncates the file. Throws FileError, as do the other functions: disk full, ...
  explicit TensorWriter(const std::filesystem::path& path);

  // begin: behind what precedes all tensors.
  void Place(const Tensor& tensor, uint64_t begin);
  // Writes what precedes the tensors, whose places count from there until now.
  void WriteFront(std::span<const std::byte> bytes);
  // Makes the file so long.
  void Extend(uint64_t bytes);

 private:
  void Put(uint64_t at, std::span<const std::byte> bytes);
  [[noreturn]] void Fail(const char* what) const;

  struct Range {
    uint64_t begin = 0, bytes = 0;
  };
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::map<std::string, Range> places_;
};

}  // namespace litecache::io

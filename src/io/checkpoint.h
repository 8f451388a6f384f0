// All tensors of a model directory: model.safetensors, or the shards that
// model.safetensors.index.json names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace litecache::io {

class Checkpoint {
 public:
  // Maps the files and checks them against the index. Throws FileError: no weights in the directory
  // (saying what is there instead), a shard missing, a tensor missing from its shard or in two.
  explicit Checkpoint(const std::filesystem::path& directory);

  struct Tensor {
    const TensorInfo* info = nullptr;
    const std::byte* data = nullptr;
    const std::filesystem::path* file = nullptr;
  };

  // info is null when there is no such tensor.
  Tensor Find(const std::string& name) const;
  size_t tensor_count() const { return tensors_.size(); }
  // Ascending, whatever shards they lie in.
  std::vector<std::string> TensorNames() const;

  // Names, sizes and times of its files, in one line: a file that is written again differs, however
  // small the change. Throws FileError.
  std::string FileVersions() const;
  uint64_t file_bytes() const { return file_bytes_; }
  const std::filesystem::path& directory() const { return directory_; }

  // Reads every file into memory (MappedFile::Prefault). progress(done, total) may throw to cancel.
  void Prefault(const std::function<void(int64_t done, int64_t total)>& progress) const;

 private:
  void Add(const std::filesystem::path& file);

  std::filesystem::path directory_;
  std::vector<Safetensors> files_;
  std::map<std::string, size_t> tensors_;  // name -> index into files_
  uint64_t file_bytes_ = 0;
};

}  // namespace litecache::io

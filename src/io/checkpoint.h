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
  // (the message says what is in it instead), a missing shard, a tensor that is missing from its
  // shard or is in two.
  explicit Checkpoint(const std::filesystem::path& directory);

  struct Tensor {
    const TensorInfo* info = nullptr;
    const std::byte* data = nullptr;
    const std::filesystem::path* file = nullptr;
  };

  // info is null if there is no such tensor.
  Tensor Find(const std::string& name) const;
  size_t tensor_count() const { return tensors_.size(); }
  // In ascending order, independent of shards.
  std::vector<std::string> TensorNames() const;

  // Names, sizes and times of its files, in one line: any rewritten file changes it, however small
  // the change. Throws FileError.
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

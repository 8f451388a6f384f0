// All tensors of a model: model.safetensors, or the shards that model.safetensors.index.json names,
// or the files of a GGUF model.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "io/tensor_file.h"

namespace litecache::io {

class Checkpoint {
 public:
  // Maps the files and checks them against the index. `model`: a directory, or the (first) file of
  // a GGUF model. Throws FileError: no weights in the directory (the message says what is in it
  // instead), a missing shard, a tensor that is missing from its shard or is in two.
  // stacked_experts: where a directory has the experts of a layer in two tensors,
  // "….experts.gate_up_proj" [experts, 2 intermediate, hidden] and "….experts.down_proj" [experts,
  // hidden, intermediate], their matrices are also found by the usual names:
  // "….experts.3.up_proj.weight".
  explicit Checkpoint(const std::filesystem::path& model, bool stacked_experts = false);

  struct Tensor {
    const TensorInfo* info = nullptr;
    const std::byte* data = nullptr;
    const std::filesystem::path* file = nullptr;
    // Not 0: the rows are those of so many heads, and rows i and i + d/2 of a head of d rows are
    // its rows 2i and 2i + 1 here. llama.cpp stores W_q and W_k of Llama and others so, because it
    // rotates neighbouring channels with one another.
    int64_t paired_heads = 0;
    // Its values are -exp(x) where a directory has x: llama.cpp stores the rates of recurrent
    // layers so.
    bool negated_exponential = false;
  };

  // By its name in Hugging Face's checkpoints, also in GGUF. info is null if there is no such
  // tensor.
  Tensor Find(const std::string& name) const;
  size_t tensor_count() const { return tensors_.size(); }
  // In ascending order, independent of shards.
  std::vector<std::string> TensorNames() const;

  // Names, sizes and times of its files, in one line: any rewritten file changes it, however small
  // the change. Throws FileError.
  std::string FileVersions() const;
  uint64_t file_bytes() const { return file_bytes_; }
  // The directory, or the GGUF file.
  const std::filesystem::path& path() const { return path_; }
  // The (first) file of a GGUF model, which has the metadata; null for safetensors.
  const Gguf* gguf() const { return gguf_; }

  // Reads every file into memory (MappedFile::Prefault). progress(done, total) may throw to cancel.
  void Prefault(const std::function<void(int64_t done, int64_t total)>& progress) const;

 private:
  struct Place {
    size_t file = 0;  // index into files_
    const TensorInfo* info = nullptr;
    int64_t paired_heads = 0;
    bool negated_exponential = false;
  };

  void AddDirectory();
  void AddIndexed(const std::filesystem::path& index);
  void AddGguf();
  void Add(std::unique_ptr<TensorFile> file);
  void SplitExperts();
  // The matrices of all experts in GGUF, whose gates may stand before their ups in one tensor.
  void AddGgufExperts(size_t file, const std::string& name, const std::string& stored,
                      const TensorInfo& info);
  // stored: the tensor's name in files_[file].
  void AddTensor(size_t file, const std::string& name, const std::string& stored,
                 const TensorInfo& info);
  // The matrices of all experts, one behind another, as one tensor each: of the `parts` of equal
  // height that each consists of, the one of this index.
  void AddExperts(size_t file, const std::string& name, const std::string& stored,
                  const TensorInfo& info, int64_t part = 0, int64_t parts = 1);

  std::filesystem::path path_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  const Gguf* gguf_ = nullptr;
  std::map<std::string, Place> tensors_;
  // Parts of tensors that have the matrices of several experts, and tensors that have another shape
  // in a directory.
  std::deque<TensorInfo> reshaped_;
  uint64_t file_bytes_ = 0;
};

}  // namespace litecache::io

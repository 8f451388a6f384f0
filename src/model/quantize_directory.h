// Writes a Hugging Face directory with quantized weights, in the format of compressed-tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "io/tensor_file.h"

namespace litecache::model {

struct DirectoryOptions {
  // w4a16 or w8a16: integers of 4 or 8 bits with a scale for each group of columns; fp8: E4M3 with
  // a scale for each row. With exceptions by module (module_types.h); those of lm_head and
  // embed_tokens are none unless stated.
  std::string types = "w4a16";
  // Columns of a group: 32, 64 or 128; halved where they do not divide a matrix's. A matrix whose
  // columns are no multiple of 32 stays as it is.
  int64_t group_size = 128;
  bool search_scales = true;  // quantize::RowFormat
  // Of a file; a larger tensor has a file of its own.
  uint64_t file_bytes = uint64_t{4} << 30;
};

// Matrices that are quantized in the same way.
struct QuantizedKind {
  std::string_view type;  // "w4a16"
  int64_t group = 0;      // columns; 0: a row
  int64_t matrices = 0;
  uint64_t weights = 0, bytes = 0;
  double squares = 0, squared_error = 0;  // of the weights, and of what they become

  double relative_error() const;
};
// Tensors that are not quantized: those of one module, or all vectors.
struct KeptKind {
  std::string name;  // "lm_head", "vectors"
  int64_t tensors = 0;
  uint64_t bytes = 0;
};
struct QuantizedModel {
  std::vector<QuantizedKind> kinds;
  std::vector<KeptKind> kept;  // the largest first
  uint64_t weights = 0;        // of all tensors
  uint64_t bytes_before = 0, bytes = 0;
  int64_t files = 0;

  // Counts a tensor that is not quantized; bytes: of what is written.
  void AddKept(std::string_view tensor, const io::TensorInfo& info, bool is_matrix, uint64_t bytes);
};

// Quantizes the directory `model`, whose weights are bf16, f16 or f32, into `output`, which may be
// an empty directory but nothing else that exists. Memory does not grow with the model. Until all
// is written, it is in a directory beside `output`, which is removed after an error. The same model
// and options give the same files. progress: bytes of weights done, and in all; may throw to
// cancel. Throws InvalidArgument (types), FileError and Unsupported.
QuantizedModel QuantizeDirectory(const std::filesystem::path& model,
                                 const std::filesystem::path& output,
                                 const DirectoryOptions& options, ThreadPool& pool,
                                 const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace litecache::model

// What quantizing a directory makes of each of its tensors (quantize_directory.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/quantize_rows.h"
#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "model/config.h"
#include "model/linear_matrices.h"
#include "model/module_types.h"
#include "model/quantize_directory.h"

namespace litecache::model {

struct DirectoryType {
  std::string_view name;
  int bits = 8;
  bool is_float = false;
};

class DirectoryPlan {
 public:
  // A tensor of the model; kind: an index into kinds(), or -1: it stays as it is.
  struct Source {
    std::string name;
    io::Checkpoint::Tensor tensor;
    int kind = -1;
    int64_t file = 0;
    // Codes, scales, and of packed codes the shape; or the tensor itself.
    std::vector<io::SafetensorsFile::Tensor> outputs;
  };
  struct Kind {
    const DirectoryType* type = nullptr;
    quantize::RowFormat format;
  };

  // options must outlive the plan. Throws as QuantizeDirectory() does.
  DirectoryPlan(const std::filesystem::path& model, const DirectoryOptions& options);

  const std::filesystem::path& model() const { return checkpoint_->path(); }
  bool ties_embeddings() const { return config_.tie_embeddings; }
  const std::vector<Source>& sources() const { return sources_; }  // those of a file in succession
  const std::vector<Kind>& kinds() const { return kinds_; }
  int64_t files() const { return files_; }
  uint64_t bytes_before() const { return bytes_before_; }
  uint64_t bytes() const { return bytes_; }
  // Whether the decoder takes it as a matrix.
  bool is_matrix(const std::string& tensor) const { return matrices_.contains(tensor); }

 private:
  void PlanMatrices();
  void PlanMatrix(const LinearMatrix& matrix);
  int KindOf(const Kind& wanted);
  std::vector<io::SafetensorsFile::Tensor> OutputsOf(const Source& source) const;
  void PlanFiles();

  const DirectoryOptions& options_;
  const ModuleTypes types_;
  const ModelConfig config_;
  const std::shared_ptr<const io::Checkpoint> checkpoint_;
  std::map<std::string, int> matrices_;  // the tensors of linear layers, and their kinds
  std::vector<Kind> kinds_;
  std::vector<Source> sources_;
  int64_t files_ = 0;
  uint64_t bytes_before_ = 0, bytes_ = 0;
};

}  // namespace litecache::model

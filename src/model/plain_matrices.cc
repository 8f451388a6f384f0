#include "model/plain_matrices.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "io/gguf.h"
#include "model/weight_types.h"

namespace litecache::model {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void RefuseMissing(const io::Checkpoint& checkpoint, const LinearMatrix& matrix) {
  const std::string& name = matrix.tensor;
  if (const size_t experts = name.find(".experts."); experts != name.npos) {
    const std::string prefix = name.substr(0, experts + std::strlen(".experts."));
    for (const std::string& other : checkpoint.TensorNames()) {
      if (!other.starts_with(prefix)) continue;
      throw Unsupported(
          "{}: tensor '{}' has the matrices of all experts of a layer, which this command does not "
          "quantize; --quantize does, when the model is loaded",
          checkpoint.path().string(), other);
    }
  }
  throw FileError("{}: tensor '{}'{} is missing, but the model's config requires it",
                  checkpoint.path().string(), name,
                  io::TensorInfo{"", {matrix.rows, matrix.cols}}.ToString());
}

}  // namespace

ModelConfig ReadPlainConfig(const fs::path& model) {
  if (io::IsGguf(model)) {
    throw Unsupported("{}: is a GGUF file; name the Hugging Face directory that it was made from",
                      model.string());
  }
  ModelConfig config = ModelConfig::FromModel(model);
  if (config.quantization) {
    throw Unsupported(
        "{}: field 'quantization_config' says that its weights are quantized already; name the "
        "model that they were made from",
        (model / "config.json").string());
  }
  return config;
}

std::vector<LinearMatrix> QuantizableMatrices(
    const ModelConfig& config, const std::shared_ptr<const io::Checkpoint>& checkpoint,
    const ModuleTypes& types) {
  for (const auto& [module, type] : types.modules) {
    if (type == "none") continue;
    if (module == "embed_tokens" || IsNeverQuantized(module)) {
      throw InvalidArgument("{}={}: this module always stays as it is", module, type);
    }
    if (module == "lm_head" && config.tie_embeddings) {
      throw InvalidArgument("lm_head={}: this model's output matrix is its embeddings, which stay",
                            type);
    }
  }
  // The decoder looks for single experts.
  const auto split =
      std::make_shared<const io::Checkpoint>(checkpoint->path(), config.experts.stacked);
  std::vector<LinearMatrix> matrices = LinearMatrices(config, WeightTypes(config, {}, {}, split));
  for (const auto& exception : types.modules) {
    const auto is_meant = [&](const LinearMatrix& matrix) {
      return ModuleOf(matrix.tensor) == exception.first;
    };
    if (std::ranges::none_of(matrices, is_meant)) {
      throw InvalidArgument("{}={}: the model has no such module", exception.first,
                            exception.second);
    }
  }
  return matrices;
}

io::Checkpoint::Tensor FindPlain(const io::Checkpoint& checkpoint, const LinearMatrix& matrix) {
  const io::Checkpoint::Tensor tensor = checkpoint.Find(matrix.tensor);
  if (tensor.info == nullptr) RefuseMissing(checkpoint, matrix);
  const std::vector<int64_t> shape{matrix.rows, matrix.cols};
  if (tensor.info->shape != shape || !PlainType(*tensor.info)) {
    throw FileError("{}: tensor '{}' is {}, but must be{}, in BF16, F16 or F32",
                    tensor.file->string(), matrix.tensor, tensor.info->ToString(),
                    io::TensorInfo{"", shape}.ToString());
  }
  return tensor;
}

}  // namespace litecache::model

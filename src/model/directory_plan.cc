#include "model/directory_plan.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/join.h"
#include "io/gguf.h"
#include "model/module_types.h"
#include "model/weight_types.h"

namespace litecache::model {
namespace {

namespace fs = std::filesystem;
using OutputTensor = io::SafetensorsFile::Tensor;

constexpr int64_t kSmallestGroup = 32;

constexpr DirectoryType kTypes[] = {{"w4a16", 4}, {"w8a16", 8}, {"fp8", 8, true}};

const DirectoryType* ParseType(std::string_view text) {
  if (text == "none") return nullptr;
  std::vector<std::string_view> names;
  for (const DirectoryType& type : kTypes) {
    if (type.name == text) return &type;
    names.push_back(type.name);
  }
  throw InvalidArgument("'{}' is not one of {}", text, Join(names));
}

std::optional<DType> PlainDType(std::string_view name) {
  if (name == "BF16") return DType::kBF16;
  if (name == "F16") return DType::kF16;
  if (name == "F32") return DType::kF32;
  return std::nullopt;
}

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

}  // namespace

DirectoryPlan::DirectoryPlan(const fs::path& model, const DirectoryOptions& options)
    : options_(options),
      config_(ReadPlainConfig(model)),
      checkpoint_(std::make_shared<const io::Checkpoint>(model)) {
  ParseTypes();
  PlanMatrices();
  PlanFiles();
}

void DirectoryPlan::ParseTypes() {
  const ModuleTypes types = ModuleTypes::Parse(options_.types);
  type_ = ParseType(types.type);
  for (const auto& [module, type] : types.modules) {
    exceptions_.emplace_back(module, ParseType(type));
    if (exceptions_.back().second == nullptr) continue;
    if (module == "embed_tokens" || IsNeverQuantized(module)) {
      throw InvalidArgument("{}={}: this module always stays as it is", module, type);
    }
    if (module == "lm_head" && config_.tie_embeddings) {
      throw InvalidArgument("lm_head={}: this model's output matrix is its embeddings, which stay",
                            type);
    }
  }
}

const DirectoryType* DirectoryPlan::TypeOf(std::string_view module) const {
  if (IsNeverQuantized(module)) return nullptr;
  for (const auto& [of, type] : exceptions_) {
    if (of == module) return type;
  }
  return module == "lm_head" || module == "embed_tokens" ? nullptr : type_;
}

void DirectoryPlan::PlanMatrices() {
  // The decoder looks for single experts.
  const auto split =
      std::make_shared<const io::Checkpoint>(checkpoint_->path(), config_.experts.stacked);
  const std::vector<LinearMatrix> matrices =
      LinearMatrices(config_, WeightTypes(config_, {}, {}, split));
  for (const auto& exception : exceptions_) {
    const auto is_meant = [&](const LinearMatrix& matrix) {
      return ModuleOf(matrix.tensor) == exception.first;
    };
    if (std::ranges::none_of(matrices, is_meant)) {
      throw InvalidArgument("{}={}: the model has no such module", exception.first,
                            exception.second == nullptr ? "none" : exception.second->name);
    }
  }
  for (const LinearMatrix& matrix : matrices) PlanMatrix(matrix);
  if (kinds_.empty()) {
    throw InvalidArgument("--type {}: no matrix of the model would be quantized", options_.types);
  }
}

void DirectoryPlan::PlanMatrix(const LinearMatrix& matrix) {
  const auto [name, rows, cols] = matrix;
  const io::Checkpoint::Tensor tensor = checkpoint_->Find(name);
  if (tensor.info == nullptr) RefuseMissing(matrix);
  const std::vector<int64_t> shape{rows, cols};
  const std::optional<DType> dtype = PlainDType(tensor.info->dtype);
  if (tensor.info->shape != shape || !dtype) {
    throw FileError("{}: tensor '{}' is {}, but must be{}, in BF16, F16 or F32",
                    tensor.file->string(), name, tensor.info->ToString(),
                    io::TensorInfo{"", shape}.ToString());
  }
  matrices_[name] = -1;
  const DirectoryType* type = TypeOf(ModuleOf(name));
  if (type == nullptr) return;
  int64_t group = 0;
  if (!type->is_float) {
    group = options_.group_size;
    while (cols % group != 0 && group > kSmallestGroup) group /= 2;
    if (cols % group != 0) return;
  }
  matrices_[name] = KindOf({type,
                            {.bits = type->bits,
                             .is_float = type->is_float,
                             .group = group,
                             .scale_dtype = *dtype,
                             .search = options_.search_scales}});
}

void DirectoryPlan::RefuseMissing(const LinearMatrix& matrix) const {
  const std::string& name = matrix.tensor;
  if (const size_t experts = name.find(".experts."); experts != name.npos) {
    const std::string prefix = name.substr(0, experts + std::strlen(".experts."));
    for (const std::string& other : checkpoint_->TensorNames()) {
      if (!other.starts_with(prefix)) continue;
      throw Unsupported(
          "{}: tensor '{}' has the matrices of all experts of a layer, which this command does not "
          "quantize; --quantize does, when the model is loaded",
          checkpoint_->path().string(), other);
    }
  }
  throw FileError("{}: tensor '{}'{} is missing, but the model's config requires it",
                  checkpoint_->path().string(), name,
                  io::TensorInfo{"", {matrix.rows, matrix.cols}}.ToString());
}

int DirectoryPlan::KindOf(const Kind& wanted) {
  const auto found = std::ranges::find_if(kinds_, [&](const Kind& kind) {
    return kind.type == wanted.type && kind.format.group == wanted.format.group &&
           kind.format.scale_dtype == wanted.format.scale_dtype;
  });
  const auto index = static_cast<int>(found - kinds_.begin());
  if (found == kinds_.end()) kinds_.push_back(wanted);
  return index;
}

std::vector<OutputTensor> DirectoryPlan::OutputsOf(const Source& source) const {
  const io::TensorInfo& info = *source.tensor.info;
  if (source.kind < 0) return {{source.name, info.dtype, info.shape, info.bytes()}};
  const quantize::RowFormat& format = kinds_[static_cast<size_t>(source.kind)].format;
  const int64_t rows = info.shape[0], cols = info.shape[1];
  const auto bytes = [rows](int64_t of_row) { return static_cast<uint64_t>(rows * of_row); };
  const uint64_t codes = bytes(format.code_bytes(cols)), scales = bytes(format.scale_bytes(cols));
  // Scales have the dtype of the weights.
  const OutputTensor scale{source.name + "_scale", info.dtype, {rows, format.groups(cols)}, scales};
  if (format.is_float) return {{source.name, "F8_E4M3", {rows, cols}, codes}, scale};
  return {{source.name + "_packed", "I32", {rows, format.code_bytes(cols) / 4}, codes},
          scale,
          {source.name + "_shape", "I64", {2}, 16}};
}

void DirectoryPlan::PlanFiles() {
  uint64_t in_file = 0;
  for (const std::string& name : checkpoint_->TensorNames()) {
    Source source{.name = name, .tensor = checkpoint_->Find(name), .outputs = {}};
    if (const auto found = matrices_.find(name); found != matrices_.end()) {
      source.kind = found->second;
    }
    source.outputs = OutputsOf(source);
    uint64_t bytes = 0;
    for (const OutputTensor& output : source.outputs) bytes += output.bytes;
    if (files_ == 0 || (in_file > 0 && in_file + bytes > options_.file_bytes)) {
      ++files_;
      in_file = 0;
    }
    in_file += bytes;
    source.file = files_ - 1;
    bytes_before_ += source.tensor.info->bytes();
    bytes_ += bytes;
    sources_.push_back(std::move(source));
  }
}

}  // namespace litecache::model

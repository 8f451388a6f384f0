#include "model/directory_plan.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/join.h"
#include "model/plain_matrices.h"
#include "model/weight_types.h"

namespace litecache::model {
namespace {

namespace fs = std::filesystem;
using OutputTensor = io::SafetensorsFile::Tensor;

constexpr int64_t kSmallestGroup = 32;

constexpr DirectoryType kTypes[] = {{"w4a16", 4}, {"w8a16", 8}, {"fp8", 8, true}};

bool IsWritable(std::string_view text) {
  return std::ranges::any_of(WritableFormats(),
                             [text](const auto& format) { return format.first == text; });
}

const DirectoryType* ParseType(std::string_view text) {
  if (text == "none") return nullptr;
  std::vector<std::string_view> names;
  for (const DirectoryType& type : kTypes) {
    if (type.name == text) return &type;
    names.push_back(type.name);
  }
  throw InvalidArgument("'{}' is not one of {}{}", text, Join(names),
                        IsWritable(text) ? "; it is a type of GGUF files, --output NAME.gguf" : "");
}

}  // namespace

DirectoryPlan::DirectoryPlan(const fs::path& model, const DirectoryOptions& options)
    : options_(options),
      types_(ModuleTypes::Parse(options.types)),
      config_(ReadPlainConfig(model)),
      checkpoint_(std::make_shared<const io::Checkpoint>(model)) {
  PlanMatrices();
  PlanFiles();
}

void DirectoryPlan::PlanMatrices() {
  ParseType(types_.type);
  for (const auto& [module, type] : types_.modules) ParseType(type);
  for (const LinearMatrix& matrix : QuantizableMatrices(config_, checkpoint_, types_)) {
    PlanMatrix(matrix);
  }
  if (kinds_.empty()) {
    throw InvalidArgument("--type {}: no matrix of the model would be quantized", options_.types);
  }
}

void DirectoryPlan::PlanMatrix(const LinearMatrix& matrix) {
  const std::string& name = matrix.tensor;
  const int64_t cols = matrix.cols;
  const std::optional<DType> dtype = PlainType(*FindPlain(*checkpoint_, matrix).info);
  matrices_[name] = -1;
  const DirectoryType* type = ParseType(types_.Of(ModuleOf(name)));
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

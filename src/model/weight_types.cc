#include "model/weight_types.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>

#include "base/error.h"
#include "base/join.h"
#include "model/module_types.h"
#include "model/quantized_matrix.h"
#include "model/stacked_experts.h"
#include "ops/linear/quantized/packed_blocks.h"

namespace litecache::model {
namespace {

std::string Upper(std::string_view text) {
  std::string upper(text);
  std::ranges::transform(upper, upper.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return upper;
}

bool CanBeWritten(const BlockFormat& format) {
  return format.quantized() && format.from_float != nullptr;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

const BlockFormat* ParseFormat(std::string_view text) {
  const BlockFormat* format = FindBlockFormat(Upper(text));
  if (format != nullptr && CanBeWritten(*format)) return format;
  if (text == "fp8") {
    throw InvalidArgument(
        "'fp8' is a type of files only: weights of FP8 checkpoints are Q8_0 in memory, and q8_0 is "
        "nearer to these; `litecache quantize --type fp8` writes a checkpoint");
  }
  std::vector<std::string_view> known;
  for (const auto& [name, other] : WritableFormats()) known.push_back(name);
  throw InvalidArgument("'{}' is not one of {}", text, Join(known));
}

double BitsOf(const BlockFormat& format) {
  return 8 * static_cast<double>(format.bytes) / static_cast<double>(format.values);
}

}  // namespace

const std::vector<std::pair<std::string, const BlockFormat*>>& WritableFormats() {
  static const auto formats = [] {
    std::vector<std::pair<std::string, const BlockFormat*>> all;
    for (const BlockFormat& format : BlockFormats()) {
      if (CanBeWritten(format)) all.emplace_back(Lower(format.name), &format);
    }
    return all;
  }();
  return formats;
}

const BlockFormat* Fitting(const BlockFormat& format, int64_t cols) {
  if (cols % format.values == 0) return &format;
  const BlockFormat* best = nullptr;
  for (const BlockFormat& other : BlockFormats()) {
    if (!CanBeWritten(other) || cols % other.values != 0 || BitsOf(other) < BitsOf(format))
      continue;
    if (best == nullptr || BitsOf(other) < BitsOf(*best)) best = &other;
  }
  return best;
}

std::optional<DType> PlainType(const io::TensorInfo& info) {
  if (info.dtype == "BF16") return DType::kBF16;
  if (info.dtype == "F16") return DType::kF16;
  if (info.dtype == "F32") return DType::kF32;
  return std::nullopt;
}

std::string_view ModuleOf(std::string_view name) {
  for (const std::string_view end : {".weight", ".bias"}) {
    if (name.ends_with(end)) name.remove_suffix(end.size());
  }
  const size_t begin = name.rfind('.');
  return begin == name.npos ? name : name.substr(begin + 1);
}

Quantization Quantization::Parse(std::string_view text) {
  Quantization quantization;
  if (text.empty()) return quantization;
  const ModuleTypes types = ModuleTypes::Parse(text);
  quantization.format = ParseFormat(types.type);
  for (const auto& [module, type] : types.modules) {
    quantization.modules.emplace_back(module, type == "none" ? nullptr : ParseFormat(type));
  }
  return quantization;
}

const BlockFormat* Quantization::Of(std::string_view name, int64_t cols) const {
  const std::string_view module = ModuleOf(name);
  if (format == nullptr || IsNeverQuantized(module)) return nullptr;
  for (const auto& [of, other] : modules) {
    if (of == module) return other == nullptr ? nullptr : Fitting(*other, cols);
  }
  const BlockFormat* wanted = format;
  if (module == "lm_head" || module == "embed_tokens") {
    const BlockFormat* at_least = FindBlockFormat("Q6_K");
    if (BitsOf(*wanted) < BitsOf(*at_least)) wanted = at_least;
  }
  return Fitting(*wanted, cols);
}

WeightTypes::WeightTypes(const ModelConfig& config, std::optional<DType> dtype,
                         Quantization quantization,
                         std::shared_ptr<const io::Checkpoint> checkpoint)
    : quantization_(std::move(quantization)),
      checkpoint_(std::move(checkpoint)),
      stored_(config.quantization),
      gated_head_dim_(config.output_gate ? config.head_dim : 0) {
  if (config.fused_delta) fused_delta_ = config.delta;
  if (dtype == DType::kF32) {
    dtype_ = DType::kF32;
  } else if (quantization_.format != nullptr || config.quantized) {
    dtype_ = DType::kBF16;
    quantizes_ = true;
  } else if (dtype || config.converts_weights || checkpoint_ == nullptr) {
    dtype_ = dtype.value_or(config.weight_dtype);
  }
}

MatrixView WeightTypes::Of(const std::string& name, int64_t rows, int64_t cols) const {
  const StoredRows place = RowsOf(name, rows);
  const io::TensorInfo* info =
      checkpoint_ == nullptr ? nullptr : checkpoint_->Find(place.tensor).info;
  const std::unique_ptr<StoredMatrix> stored =
      dtype_ != DType::kF32 ? Stored(place.tensor, place.rows, cols) : nullptr;
  if (dtype_ != DType::kF32) {
    const BlockFormat* format = quantization_.Of(name, cols);
    if (format == nullptr) {
      if (stored != nullptr) {
        format = stored->format();
      } else if (info != nullptr) {
        format = FindBlockFormat(info->dtype);
      }
    }
    if (format != nullptr && format->quantized() && cols % format->values == 0) {
      return MatrixView::OfBlocks(nullptr, *format, rows, cols);
    }
  }
  std::optional<DType> dtype = dtype_;
  if (!dtype && stored != nullptr) dtype = stored->dtype();
  if (!dtype && info != nullptr) dtype = PlainType(*info);
  // A tensor that is missing, or of a type that is not read, is reported where it is taken.
  return MatrixView::Of(static_cast<void*>(nullptr), dtype.value_or(DType::kF32), rows, cols);
}

StoredRows WeightTypes::RowsOf(const std::string& name, int64_t rows) const {
  const std::string_view module = ModuleOf(name);
  if (gated_head_dim_ != 0 && module == "q_proj") {
    const int64_t dim = gated_head_dim_;
    return {name, rows, RowOrder(2 * dim, {{0, dim, 0}, {rows / 2, dim, dim}})};
  }
  const bool fused_name = fused_delta_ && module.starts_with("in_proj_");
  if (!fused_name || (checkpoint_ != nullptr && Has(name))) return {name, rows, {}};
  const ops::GatedDeltaShape& shape = *fused_delta_;
  const int64_t values = shape.value_heads / shape.key_heads;  // heads of a key head
  const auto fused = [&](const char* tensor, int64_t group,
                         std::initializer_list<RowOrder::Section> sections) {
    const size_t begin = name.rfind(module);
    return StoredRows{std::string(name).replace(begin, module.size(), tensor),
                      shape.key_heads * group, RowOrder(group, sections)};
  };
  // A key head's query and key, its values, and their gates.
  const int64_t key = shape.key_dim, value = values * shape.value_dim, all = 2 * key + 2 * value;
  const int64_t keys = shape.key_heads * key;
  if (module == "in_proj_qkv") {
    return fused("in_proj_qkvz", all, {{0, key, 0}, {keys, key, key}, {2 * keys, value, 2 * key}});
  }
  if (module == "in_proj_z") return fused("in_proj_qkvz", all, {{0, value, 2 * key + value}});
  const bool rate = module == "in_proj_a";
  return fused("in_proj_ba", 2 * values, {{0, values, rate ? values : 0}});
}

std::unique_ptr<StoredMatrix> WeightTypes::Stored(const std::string& tensor, int64_t rows,
                                                  int64_t cols) const {
  if (checkpoint_ == nullptr) return nullptr;
  if (auto stacked = FindStackedExpert(*checkpoint_, tensor, rows, cols)) return stacked;
  if (!stored_) return nullptr;
  return QuantizedMatrix::Find(*checkpoint_, *stored_, tensor, rows, cols);
}

bool ConvertsWeights(const ModelConfig& config, std::optional<DType> dtype) {
  if (dtype == DType::kF32) return config.quantized || config.weight_dtype != DType::kF32;
  if (config.quantized) return false;
  return config.converts_weights || dtype.value_or(config.weight_dtype) != config.weight_dtype;
}

uint64_t WeightBytesOf(const MatrixView& type, bool gpu) {
  if (type.dtype == DType::kBlocks && gpu) {
    return ops::PackedBytes(*type.format, type.rows, type.cols);
  }
  return static_cast<uint64_t>(type.rows * type.RowBytes());
}

}  // namespace litecache::model

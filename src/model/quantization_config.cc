#include "model/quantization_config.h"

#include <fmt/core.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "base/join.h"
#include "io/json.h"
#include "model/config_fields.h"

namespace litecache::model {
namespace {

using nlohmann::json;
using Layout = QuantizationConfig::Layout;

// Throws Unsupported unless the field is absent or has one of these values.
void AllowOnly(const io::JsonFields& fields, std::string_view key,
               std::initializer_list<json> values) {
  const json* value = fields.Find(key);
  if (value == nullptr) return;
  std::vector<std::string> texts;
  for (const json& allowed : values) {
    if (*value == allowed) return;
    texts.push_back(io::Excerpt(allowed));
  }
  fields.Refuse(key, Join(texts, " and ") + (texts.size() == 1 ? " is" : " are") + " supported");
}

// Throws Unsupported unless the field is absent or empty.
void AllowNone(const io::JsonFields& fields, std::string_view key, const std::string& reason) {
  const json* value = fields.Find(key);
  if (value != nullptr && !value->empty()) fields.Refuse(key, reason);
}

int64_t Bits(const io::JsonFields& fields, std::string_view key,
             std::initializer_list<json> allowed) {
  const int64_t bits = fields.RequiredInt(key, 1, 64);
  AllowOnly(fields, key, allowed);
  return bits;
}

// Columns that share a scale; 0: all, for which configs have -1.
int64_t GroupSize(const io::JsonFields& fields) {
  const int64_t size = fields.RequiredInt("group_size", -1, kMaxWidth);
  if (size == 0) fields.Fail("group_size", "must be positive, or -1 for one group");
  return size < 0 ? 0 : size;
}

// Sets the size of blocks that share a scale; false: the field is absent.
bool ReadBlock(const io::JsonFields& fields, std::string_view key, QuantizationConfig* config) {
  const auto sizes = fields.IntOrInts(key, 1, kMaxWidth);
  if (sizes.empty() && !fields.Has(key)) return false;
  if (sizes.size() != 2) fields.Fail(key, "must be [rows, columns]");
  config->scale_rows = sizes[0];
  config->scale_cols = sizes[1];
  return true;
}

QuantizationConfig ParseFp8(const io::JsonFields& fields) {
  AllowOnly(fields, "fmt", {"e4m3"});
  QuantizationConfig config{.layout = Layout::kFp8};
  if (ReadBlock(fields, "weight_block_size", &config)) {
    config.scale_name = "weight_scale_inv";
  } else {
    config.scale_rows = 0;
  }
  return config;
}

QuantizationConfig ParseAwq(const io::JsonFields& fields) {
  AllowOnly(fields, "version", {"gemm"});
  AllowOnly(fields, "zero_point", {true});
  return {.layout = Layout::kAwq,
          .scale_name = "scales",
          .bits = Bits(fields, "bits", {4}),
          .scale_cols = GroupSize(fields),
          .symmetric = false};
}

QuantizationConfig ParseGptq(const io::JsonFields& fields) {
  bool zeros_less_one = true;
  // gptqmodel names the field "format", too.
  for (const char* key : {"checkpoint_format", "format"}) {
    AllowOnly(fields, key, {"gptq", "gptq_v2"});
    if (fields.String(key) == "gptq_v2") zeros_less_one = false;
  }
  AllowOnly(fields, "is_marlin_format", {false});
  AllowOnly(fields, "pack_dtype", {"int32"});
  if (const auto dynamic = fields.Object("dynamic")) {
    for (const auto& [modules, value] : fields.Find("dynamic")->items()) {
      if (!modules.starts_with("-:")) {
        dynamic->Refuse(modules, "modules may be left unquantized (-:), not quantized otherwise");
      }
    }
  }
  return {.layout = Layout::kGptq,
          .scale_name = "scales",
          .bits = Bits(fields, "bits", {4, 8}),
          .scale_cols = GroupSize(fields),
          .symmetric = fields.Bool("sym").value_or(false),
          .zeros_less_one = zeros_less_one,
          .reordered = fields.Bool("desc_act").value_or(false)};
}

// `weights` of a group of config_groups.
QuantizationConfig ParseCompressedWeights(const io::JsonFields& fields, std::string_view format) {
  QuantizationConfig config;
  const bool is_float = format == "float-quantized", packed = format == "pack-quantized";
  config.layout = packed ? Layout::kRows : is_float ? Layout::kFp8 : Layout::kInt8;
  const std::string type = fields.RequiredString("type");
  AllowOnly(fields, "type", {is_float ? "float" : "int"});
  config.bits = packed ? Bits(fields, "num_bits", {4, 8}) : Bits(fields, "num_bits", {8});
  config.symmetric = fields.Bool("symmetric").value_or(true);
  if (!packed) AllowOnly(fields, "symmetric", {true});
  const std::string strategy = fields.RequiredString("strategy");
  AllowOnly(fields, "strategy", {"tensor", "channel", "group", "block"});
  if (strategy == "tensor") config.scale_rows = 0;
  if (strategy == "group") config.scale_cols = GroupSize(fields);
  if (strategy == "block" && !ReadBlock(fields, "block_structure", &config)) {
    fields.Fail("block_structure", "blocks need a size");
  }
  AllowOnly(fields, "actorder", {false, "weight", "static", "group", "dynamic"});
  const json* order = fields.Find("actorder");
  config.reordered = order != nullptr && (*order == "group" || *order == "dynamic");
  return config;
}

// Symmetric weights whose tensors show the rest: packed in groups, or FP8 by rows.
bool IsShownByTensors(const QuantizationConfig& config) {
  const bool packed = config.layout == Layout::kRows && config.scale_cols > 0;
  const bool fp8 = config.layout == Layout::kFp8 && config.scale_cols == 0;
  return (packed || fp8) && config.scale_rows == 1 && config.symmetric && !config.reordered;
}

QuantizationConfig ParseCompressedTensors(const io::JsonFields& fields) {
  const std::string format = fields.RequiredString("format");
  const bool mixed = format == "mixed-precision";  // each group has its own
  AllowOnly(fields, "format",
            {"float-quantized", "int-quantized", "pack-quantized", "mixed-precision"});
  AllowNone(fields, "kv_cache_scheme", "keys and values are not quantized as a checkpoint says");
  AllowNone(fields, "transform_config", "weights with transforms are not read");
  if (const auto sparsity = fields.Object("sparsity_config")) {
    AllowOnly(*sparsity, "format", {"dense"});
  }
  const auto groups = fields.Object("config_groups");
  std::optional<QuantizationConfig> config;
  bool varied = false;
  if (groups) {
    for (const auto& [name, value] : fields.Find("config_groups")->items()) {
      const auto group = groups->Object(name);
      if (!group) continue;
      const std::string own = mixed ? group->RequiredString("format") : format;
      if (mixed) {
        AllowOnly(*group, "format", {"float-quantized", "pack-quantized"});
      } else {
        AllowOnly(*group, "format", {format});
      }
      const auto weights = group->Object("weights");
      if (!weights) group->Refuse("weights", "every group must quantize weights");
      const auto parsed = ParseCompressedWeights(*weights, own);
      if (config && *config != parsed) {
        if (!IsShownByTensors(*config) || !IsShownByTensors(parsed)) {
          fields.Refuse("config_groups",
                        "all groups must quantize weights in the same way, unless all are "
                        "symmetric, and packed in groups of columns or FP8 by channel");
        }
        varied = true;
      }
      config = parsed;
    }
  }
  if (!config) fields.Fail("config_groups", "must describe how weights are quantized");
  return varied ? QuantizationConfig{.layout = Layout::kRows, .bits = 0} : *config;
}

}  // namespace

std::optional<QuantizationConfig> ParseQuantization(const io::JsonFields& fields) {
  // compressed-tensors first called the field compression_config.
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto quantization = fields.Object(key);
    if (!quantization) continue;
    const std::string method = quantization->String("quant_method").value_or("");
    if (method == "fp8") return ParseFp8(*quantization);
    if (method == "awq") return ParseAwq(*quantization);
    if (method == "gptq") return ParseGptq(*quantization);
    // Its tensors tell: model/stacked_experts.h.
    if (method == "mxfp4") return QuantizationConfig{};
    if (method == "compressed-tensors") return ParseCompressedTensors(*quantization);
    quantization->Refuse(
        "quant_method",
        "weights quantized with fp8, mxfp4, awq, gptq or compressed-tensors are read: use one of "
        "these, "
        "or the model that the weights were made from, often the one of the same name without the "
        "method's");
  }
  return std::nullopt;
}

}  // namespace litecache::model

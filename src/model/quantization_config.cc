#include "model/quantization_config.h"

#include <fmt/core.h>

#include <algorithm>
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

// Columns that share a scale; 0: all, for which configs have -1. GPTQ and AWQ have 128 where the
// config does not say.
int64_t GroupSize(const io::JsonFields& fields) {
  const int64_t size = fields.Int("group_size", -1, kMaxWidth).value_or(128);
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
    return config;
  }
  // Without the field scales may be those of whole matrices or, as in Transformers, of such blocks.
  config.bits = 0;
  config.scale_rows = config.scale_cols = 128;
  return config;
}

QuantizationConfig ParseAwq(const io::JsonFields& fields) {
  for (const char* key : {"version", "format", "checkpoint_format"}) {
    AllowOnly(fields, key, {"gemm", "GEMM"});
  }
  if (fields.String("backend") == "llm-awq") {
    fields.Refuse("backend", "its matrices are packed in another way; use a model of version gemm");
  }
  AllowOnly(fields, "zero_point", {true});
  return {.layout = Layout::kAwq,
          .scale_name = "scales",
          .bits = fields.Has("bits") ? Bits(fields, "bits", {4}) : 4,
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
  const std::string type = fields.RequiredString("type");
  // In this format, numbers of either type are stored as such.
  const bool naive = format == "naive-quantized", packed = format == "pack-quantized";
  const bool is_float = naive ? type == "float" : format == "float-quantized";
  config.layout = packed ? Layout::kRows : is_float ? Layout::kFp8 : Layout::kInt8;
  AllowOnly(fields, "type", {is_float ? "float" : "int"});
  if (packed) {
    config.bits = Bits(fields, "num_bits", {4, 8});
  } else if (is_float) {
    AllowOnly(fields, "num_bits", {8});
  } else {
    fields.RequiredInt("num_bits", 2, 8);  // in I8, whatever it is
  }
  config.symmetric = fields.Bool("symmetric").value_or(true);
  if (is_float) AllowOnly(fields, "symmetric", {true});
  const std::string strategy = fields.RequiredString("strategy");
  AllowOnly(fields, "strategy", {"tensor", "channel", "group", "block"});
  if (strategy == "tensor") config.scale_rows = 0;
  if (strategy == "group") {
    fields.RequiredInt("group_size", -1, kMaxWidth);
    config.scale_cols = GroupSize(fields);
  }
  if (strategy == "block" && !ReadBlock(fields, "block_structure", &config)) {
    fields.Fail("block_structure", "blocks need a size");
  }
  AllowOnly(fields, "actorder", {false, "weight", "static", "group", "dynamic"});
  const json* order = fields.Find("actorder");
  config.reordered = order != nullptr && (*order == "group" || *order == "dynamic");
  return config;
}

// What groups of modules that differ have in common. Which group a matrix belongs to is shown by
// its tensors, except how large blocks are that share a scale.
QuantizationConfig ShownByTensors(const io::JsonFields& fields,
                                  const std::vector<QuantizationConfig>& groups) {
  QuantizationConfig shown{.layout = Layout::kRows, .bits = 0};
  for (const QuantizationConfig& group : groups) {
    shown.symmetric = shown.symmetric && group.symmetric;
    if (group.scale_rows < 2) continue;
    const bool known = shown.scale_rows > 1;
    if (known && (shown.scale_rows != group.scale_rows || shown.scale_cols != group.scale_cols)) {
      fields.Refuse("config_groups", "the blocks of all groups must have the same block_structure");
    }
    shown.scale_rows = group.scale_rows;
    shown.scale_cols = group.scale_cols;
  }
  return shown;
}

QuantizationConfig ParseCompressedTensors(const io::JsonFields& fields) {
  const std::string format = fields.RequiredString("format");
  const bool mixed = format == "mixed-precision";  // each group has its own
  AllowOnly(
      fields, "format",
      {"float-quantized", "int-quantized", "naive-quantized", "pack-quantized", "mixed-precision"});
  AllowNone(fields, "transform_config", "weights with transforms are not read");
  if (const auto sparsity = fields.Object("sparsity_config")) {
    AllowOnly(*sparsity, "format", {"dense"});
  }
  std::vector<QuantizationConfig> configs;
  if (const auto groups = fields.Object("config_groups")) {
    for (const auto& [name, value] : fields.Find("config_groups")->items()) {
      const auto group = groups->Object(name);
      if (!group) continue;
      const std::string own = mixed ? group->RequiredString("format") : format;
      if (mixed) {
        AllowOnly(*group, "format",
                  {"float-quantized", "int-quantized", "naive-quantized", "pack-quantized"});
      } else {
        AllowOnly(*group, "format", {format});
      }
      const auto weights = group->Object("weights");
      if (!weights) group->Refuse("weights", "every group must quantize weights");
      configs.push_back(ParseCompressedWeights(*weights, own));
    }
  }
  if (configs.empty()) fields.Fail("config_groups", "must describe how weights are quantized");
  const bool alike = std::ranges::all_of(
      configs, [&](const QuantizationConfig& config) { return config == configs.front(); });
  return alike ? configs.front() : ShownByTensors(fields, configs);
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

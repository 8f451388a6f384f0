#include "model/shown_quantization.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace litecache::model {

using Layout = QuantizationConfig::Layout;

QuantizationConfig ShownByTensors(const io::Checkpoint& checkpoint,
                                  const QuantizationConfig& stated, const std::string& module,
                                  int64_t rows, int64_t cols) {
  QuantizationConfig config;
  if (stated.layout == Layout::kFp8) {
    config.layout = Layout::kFp8;
  } else if (const io::TensorInfo* packed = checkpoint.Find(module + "weight_packed").info) {
    config.layout = Layout::kRows;
    config.bits = packed->shape == std::vector<int64_t>{rows, (cols + 3) / 4} ? 8 : 4;
  } else {
    const io::TensorInfo* codes = checkpoint.Find(module + "weight").info;
    config.layout = codes != nullptr && codes->dtype == "I8" ? Layout::kInt8 : Layout::kFp8;
  }
  const bool has_zeros = checkpoint.Find(module + "weight_zero_point").info != nullptr;
  config.symmetric = stated.symmetric || config.layout == Layout::kFp8 || !has_zeros;
  const io::TensorInfo* scales = checkpoint.Find(module + "weight_scale").info;
  if (scales == nullptr) scales = checkpoint.Find(module + "weight_scale_inv").info;
  const std::vector<int64_t> shape = scales == nullptr ? std::vector<int64_t>() : scales->shape;
  const bool one = std::ranges::all_of(shape, [](int64_t extent) { return extent == 1; });
  if (one || (shape.size() == 1 && shape[0] != rows)) {
    config.scale_rows = 0;
  } else if (shape.size() == 2 && shape[0] != rows) {
    config.scale_rows = stated.scale_rows;
    config.scale_cols = stated.scale_cols;
  } else if (shape.size() == 2 && shape[1] > 0 && cols % shape[1] == 0) {
    config.scale_cols = cols / shape[1];
  }
  return config;
}

std::string DivisorsOf(const QuantizationConfig& config, const std::string& module) {
  constexpr std::string_view kDown = "c_proj.";
  if (config.layout != Layout::kAwq || !module.ends_with(kDown)) return "";
  return module.substr(0, module.size() - kDown.size()) + "act.scales";
}

}  // namespace litecache::model

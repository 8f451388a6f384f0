// How the weights of a Hugging Face directory are quantized: `quantization_config` of config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace litecache::io {
class JsonFields;
}

namespace litecache::model {

struct QuantizationConfig {
  // The tensor that holds the codes of a matrix [out, in]; its name follows the module's. Codes of
  // an I32 tensor are packed along the dimension that is divided, the lowest bits first.
  enum class Layout {
    kFp8,   // weight F8_E4M3 [out, in]
    kInt8,  // weight I8 [out, in]
    kRows,  // weight_packed I32 [out, in / codes per word]
    kGptq,  // qweight I32 [in / codes per word, out]
    kAwq,   // qweight I32 [in, out / 8], of 8 codes those with even indices first
  };
  Layout layout = Layout::kFp8;
  std::string_view scale_name = "weight_scale";
  // 0: what shares a scale is as a matrix's tensors show it and, with kRows, so are layout, bits
  // and zeros. Of scales of blocks these have the sizes below; there are codes of zero if not
  // symmetric.
  int64_t bits = 8;
  // A scale is shared by so many rows and columns of a matrix; 0: by all.
  int64_t scale_rows = 1;
  int64_t scale_cols = 0;
  // The code that stands for zero is the middle of the range; otherwise each scale has its own.
  bool symmetric = true;
  bool zeros_less_one = false;  // stored are those codes minus one
  bool reordered = false;       // columns of a group are not neighbours: g_idx says which it has

  bool operator==(const QuantizationConfig&) const = default;
};

// Of a config.json; none: it does not say that weights are quantized. Throws FileError (missing and
// absurd values) and Unsupported (field and value).
std::optional<QuantizationConfig> ParseQuantization(const io::JsonFields& fields);

}  // namespace litecache::model

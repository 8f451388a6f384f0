// What a model's matrices are in memory: numbers of one type, or quantized blocks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/block_format.h"
#include "base/matrix_view.h"
#include "io/checkpoint.h"
#include "model/config.h"
#include "model/row_order.h"
#include "model/stored_matrix.h"

namespace litecache::model {

// "v_proj" of "model.layers.3.self_attn.v_proj.weight", also of ".bias"; "sinks" of
// "model.layers.3.self_attn.sinks".
std::string_view ModuleOf(std::string_view name);

// The type of a tensor of plain numbers; none: it is quantized.
std::optional<DType> PlainType(const io::TensorInfo& info);

// The formats that weights can be quantized to, by their names on the command line: "q4_k".
const std::vector<std::pair<std::string, const BlockFormat*>>& WritableFormats();
// Of these with at least as many bits as `format`, the smallest whose blocks divide `cols`; null:
// there is none.
const BlockFormat* Fitting(const BlockFormat& format, int64_t cols);

// Which matrices are quantized when a model is loaded.
struct Quantization {
  const BlockFormat* format = nullptr;  // null: none
  // Exceptions by module, the last part of a matrix's name before ".weight": "lm_head", "v_proj".
  // A null format: it stays as it is.
  std::vector<std::pair<std::string, const BlockFormat*>> modules;

  // "q4_k" or "q4_k,lm_head=q8_0,v_proj=none"; an empty text quantizes nothing. Without exceptions
  // of their own, lm_head and embed_tokens get at least 6 bits: errors there reach the logits
  // unattenuated, and they are a small part of a large model. Throws InvalidArgument that lists the
  // types.
  static Quantization Parse(std::string_view text);

  // The format of a matrix, or null: the module's, else the general one. Where the columns are no
  // multiple of a block of 256, the format of 32 with at least as many bits; where they are not
  // even one of 32, none.
  const BlockFormat* Of(std::string_view name, int64_t cols) const;
};

// The type of each matrix of a model.
class WeightTypes {
 public:
  // As in the checkpoint (null: of the config's dtype), of `dtype`, or quantized; f32: everything
  // is f32. Plain matrices beside quantized ones are bf16, as are all activations then.
  WeightTypes(const ModelConfig& config, std::optional<DType> dtype, Quantization quantization,
              std::shared_ptr<const io::Checkpoint> checkpoint);

  // A view without data. name: Hugging Face's.
  MatrixView Of(const std::string& name, int64_t rows, int64_t cols) const;
  // Whether the files have a tensor; without files, any.
  bool Has(const std::string& name) const {
    return checkpoint_ == nullptr || checkpoint_->Find(name).info != nullptr;
  }
  // Where files have the rows of a matrix: those that gate the attention's output follow each
  // head's own in q_proj, in memory those of all heads; and Qwen3-Next has the projections of a
  // recurrent layer in two tensors, by key heads (a GGUF file may have only those of a and b so).
  StoredRows RowsOf(const std::string& name, int64_t rows) const;
  // A tensor of a directory that quantizes weights or stacks experts; null: it is plain, or
  // missing.
  std::unique_ptr<StoredMatrix> Stored(const std::string& tensor, int64_t rows, int64_t cols) const;
  bool quantized_files() const { return stored_.has_value(); }  // of such a directory
  // Whether matrices are blocks in memory.
  bool quantizes() const { return quantizes_; }
  // The format whose values a matrix is rounded to when it is loaded; null: none.
  const BlockFormat* Rounding(const std::string& name, int64_t cols) const {
    return quantization_.Of(name, cols);
  }

 private:
  bool quantizes_ = false;
  std::optional<DType> dtype_;  // of plain matrices; none: each has its own
  Quantization quantization_;
  std::shared_ptr<const io::Checkpoint> checkpoint_;  // null: no matrix has a type of its own
  std::optional<QuantizationConfig> stored_;          // of the checkpoint
  int64_t gated_head_dim_ = 0;                        // 0: no output is gated
  std::optional<ops::GatedDeltaShape> fused_delta_;   // none: projections are not fused
};

// Whether matrices that are not quantized are converted to another type, `dtype` or, if there is
// none, that of the config.
bool ConvertsWeights(const ModelConfig& config, std::optional<DType> dtype);

// The bytes of a matrix in memory; gpu: in a GPU's memory, where blocks are packed.
uint64_t WeightBytesOf(const MatrixView& type, bool gpu);

}  // namespace litecache::model

// What every family's decoder shares: its config and weights, the activation buffer, the checks of
// a step's input, and the choice of rows that get logits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/arena.h"
#include "model/decoder.h"
#include "model/weights.h"

namespace litecache::model {

// A linear layer's tensors; bias [out] or null.
struct LinearWeights {
  MatrixView weight;
  const float* bias = nullptr;
};

class DecoderBase : public Decoder {
 public:
  const ModelConfig& config() const override { return config_; }
  DType kv_dtype() const override {
    return config_.weight_dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
  }
  uint64_t weight_bytes() const override { return weights_->bytes(); }
  uint64_t weight_bytes_per_step() const override;

 protected:
  DecoderBase(Device& device, const ModelConfig& config, std::unique_ptr<WeightStore> weights)
      : device_(device), config_(config), weights_(std::move(weights)) {}

  // name + ".weight" [out, in] and, where asked for, name + ".bias".
  LinearWeights TakeLinear(const std::string& name, int64_t out, int64_t in, bool bias);
  // The first prefix under which prefix + name exists (a checkpoint of the bare model lacks the
  // head's prefix); the first of all when none does, so that messages show the usual name.
  std::string FindPrefix(std::initializer_list<const char*> prefixes,
                         const std::string& name) const;
  // Called last by a family's constructor: notes dtype and bytes. gathered: tables of which a step
  // reads single rows.
  void FinishWeights(DType dtype, std::initializer_list<MatrixView> gathered);

  WeightStore& weights() { return *weights_; }

  // Throws InvalidArgument for tokens and positions out of range; checks what the caller promises.
  void CheckStep(const kv::Step& step, std::span<const int32_t> tokens,
                 std::span<const int32_t> positions, const kv::Cache& cache,
                 std::span<const int64_t> logit_rows, const MatrixView& logits) const;

  // An arena over at least `bytes`, grown where needed.
  Arena Workspace(size_t bytes);

  // The rows the layers above attention of the last layer still need: all of them, or those that
  // get logits. Returns false when `logit_rows` is every row in order and nothing has to move.
  bool SelectRows(std::span<const int64_t> logit_rows, int64_t rows);
  // Shrinks x and attention to the selected rows; they move to where h and q were, which nobody
  // reads any more.
  void KeepSelected(Stream& stream, MatrixView& x, MatrixView& h, MatrixView& q,
                    MatrixView& attention) const;

 private:
  Device& device_;
  ModelConfig config_;
  std::unique_ptr<WeightStore> weights_;
  uint64_t gathered_bytes_ = 0;      // of tables that are only gathered from
  uint64_t gathered_row_bytes_ = 0;  // what one token reads of them
  Buffer workspace_;
  std::vector<int32_t> selected_;
};

}  // namespace litecache::model

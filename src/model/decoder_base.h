// What every family's decoder shares: its config and weights, the activation buffer, the checks of
// a step's input, and the choice of rows that get logits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/arena.h"
#include "model/decoder.h"
#include "model/expert_block.h"
#include "model/linear_weights.h"
#include "model/weights.h"
#include "parallel/communicator.h"

namespace litecache::model {

// Rows of memory for predicted queries: those of a step's decode rows, all of which get logits.
inline int64_t PredictedRows(int64_t rows, int64_t logit_rows) {
  constexpr int64_t kWithoutLogits = 64;
  return std::max(logit_rows, std::min(rows, kWithoutLogits));
}

// How many layers' predicted queries are kept: of the layers ahead, and of the one that attends.
inline constexpr int64_t kPredictedQueries = kv::Cache::kMostAhead + 1;

// Memory for the logits of a rank's part; empty without tensor parallelism.
struct LogitParts {
  MatrixView own;  // [L, padded] f32, of which the rank's part of the vocabulary is first
  MatrixView all;  // [ranks * L, padded] f32: the ranks' own
};
LogitParts PlaceLogits(Arena& arena, const ModelConfig& config, int64_t logit_rows);

class DecoderBase : public Decoder {
 public:
  const ModelConfig& config() const override { return config_; }
  DType kv_dtype() const override {
    return config_.weight_dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
  }
  uint64_t weight_bytes() const override;
  uint64_t host_weight_bytes() const override;
  int64_t offloaded_layers() const override;
  uint64_t moved_weight_bytes() const override;
  ExpertCounts expert_counts() const override;
  uint64_t weight_bytes_per_step(int64_t rows) const override;
  // Called once, before the first step of a rank's part.
  void Join(parallel::Communicator& ranks) { ranks_ = &ranks; }

 protected:
  DecoderBase(Device& device, const ModelConfig& config, std::unique_ptr<WeightStore> weights)
      : device_(device), config_(config), weights_(std::move(weights)) {}

  // Called for each layer with experts by a family's constructor.
  void CountExperts(const ExpertBlock& block);
  // The first prefix for which prefix + name exists (a checkpoint of the bare model lacks the
  // head's prefix); the first of all if none does, so that messages show the usual name.
  std::string FindPrefix(std::initializer_list<const char*> prefixes,
                         const std::string& name) const;
  // Called last by a family's constructor: records dtype (beside quantized weights activations are
  // bf16) and bytes. gathered: tables of which a
  // step reads only single rows.
  void FinishWeights(DType dtype, std::initializer_list<MatrixView> gathered);

  WeightStore& weights() { return *weights_; }

  // Called around the products of a layer whose matrices may be offloaded (weight_stream.h).
  void AwaitWeights(Stream& stream, int64_t layer, LayerPart part) const {
    if (weights_->stream() != nullptr) weights_->stream()->Await(stream, layer, part);
  }
  void ReleaseWeights(Stream& stream, int64_t layer, LayerPart part) const {
    if (weights_->stream() != nullptr) weights_->stream()->Release(stream, layer, part);
  }

  // Throws InvalidArgument for tokens and positions out of range; checks the caller's other
  // obligations with LC_CHECK.
  void CheckStep(const kv::Step& step, std::span<const int32_t> tokens,
                 std::span<const int32_t> positions, const kv::Cache& cache,
                 std::span<const int64_t> logit_rows, const MatrixView& logits) const;

  // Returns an arena over at least `bytes` bytes, grown if necessary.
  Arena Workspace(size_t bytes);

  // The layers whose queries the cache wants predicted from the input of `source`, ascending.
  std::vector<int64_t> PredictedFrom(int64_t source, const kv::Step& step,
                                     const kv::Cache& cache) const {
    std::vector<int64_t> layers;
    if (step.decode_rows == 0) return layers;
    const int64_t end = std::min(source + kv::Cache::kMostAhead + 1, config_.layers);
    for (int64_t layer = source + 1; layer < end; ++layer) {
      if (cache.PredictionSource(layer) == source) layers.push_back(layer);
    }
    return layers;
  }

  // dtype of the inputs of matrix products. On the CPU, products round f32 as they read it; a
  // GPU's matrix units need the weights' dtype in memory.
  DType product_dtype() const {
    return on_gpu() && config_.weight_dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
  }
  bool on_gpu() const { return device_.type() == DeviceType::kCuda; }
  // Null: this is the whole model.
  parallel::Communicator* ranks() const { return ranks_; }
  // y = or y += the sum over the ranks of what `compute` stores in a matrix, or adds to it, as it
  // is told. Without ranks it is told `epilogue` and y.
  void SumOverRanks(
      Stream& stream, ops::Epilogue epilogue, const MatrixView& y,
      const std::function<void(ops::Epilogue how, const MatrixView& to)>& compute) const;
  // y = or y += input output^T, summed over the ranks where each has a part of the columns.
  void SumOfProducts(Stream& stream, const MatrixView& input, const LinearWeights& output,
                     ops::Epilogue epilogue, const MatrixView& y) const;
  // y = rows of the embedding table; y [T, n] f32. table: VocabularyOf(config()).rows rows.
  void Embed(Stream& stream, const MatrixView& table, std::span<const int32_t> tokens,
             const MatrixView& y) const;
  // logits = h head^T. head: as the embedding table. memory: from PlaceLogits().
  void TakeLogits(Stream& stream, const MatrixView& h, const MatrixView& head,
                  const LogitParts& memory, const MatrixView& logits) const;
  Device& device() const { return device_; }

  // A step's ids in device memory, as its operations read them.
  struct Inputs {
    std::span<const int32_t> tokens, positions;  // [T]
    // The rows that are still needed after the last layer's attention: those that get logits. Valid
    // only if `select`; otherwise they are all rows in order, and nothing has to be moved.
    std::span<const int32_t> logit_rows;
    bool select = false;
  };
  // Runs `issue`, which issues the operations of a step that cache.BeginStep() has seen; on a GPU a
  // decode step may be replayed instead.
  void Run(Stream& stream, const kv::Step& step, std::span<const int32_t> tokens,
           std::span<const int32_t> positions, kv::Cache& cache,
           std::span<const int64_t> logit_rows, const MatrixView& logits,
           const std::function<void(const Inputs&)>& issue);

 private:
  Device& device_;
  ModelConfig config_;
  std::unique_ptr<WeightStore> weights_;
  parallel::Communicator* ranks_ = nullptr;  // null: this is the whole model
  uint64_t gathered_bytes_ = 0;              // of tables that are only gathered from
  uint64_t expert_bytes_ = 0;                // of all experts that routers choose from
  uint64_t gathered_row_bytes_ = 0;          // bytes of those tables that one token reads
  Buffer workspace_;
  std::unique_ptr<Mirror> inputs_;  // [3][input_rows_]: tokens, positions, rows that get logits
  int64_t input_rows_ = 0;
};

}  // namespace litecache::model

// The common part, on a GPU, of policies that select rows of a host store at every step (infinigen,
// pqcache): where rows are stored, how a prompt is stored, the link with its transfer engine, the
// counters, and the order of a layer's work. The host only uses lengths, so that decode steps can
// be replayed as graphs.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "device/recording_key.h"
#include "kv/cache.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/pages/sequence_table.h"
#include "kv/row_store.h"
#include "kv/step/step_block_cuda.h"
#include "kv/step/step_check.h"
#include "kv/transfer/transfer_engine_cuda.h"
#include "kv/with_shape.h"
#include "lab/forced/forced_table_cuda.h"
#include "lab/namespaces.h"
#include "lab/policies/common/store_prefill_cuda.h"
#include "litecache/kv_options.h"
#include "ops/attention/listed_cuda.h"

namespace litecache::lab {

class CudaSelectingBase : public Cache, public RowStore {
 public:
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) final;
  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                 const MatrixView& k, const MatrixView& v) final;
  void EndStep(const Step& step) final;
  std::optional<uint64_t> ReplayKey(const Step& step) const final;
  // Counters of the last step that was waited for.
  std::span<const HeadCounters> Heads() const final;

 protected:
  struct Rows {
    Layout layout;
    int64_t group = 0;
    int64_t page_rows = 0;
    ops::RowFormat format;
    // The tables of a layer's staged rows in a prompt, by the parity of the layer.
    std::array<ops::cuda::TableId, 2> staging;

    int64_t lists() const { return layout.layers * layout.kv_heads; }
  };
  // marks: of link_, besides those of prompts. forced: from measurements, or null. Throws
  // Unsupported for options that only the CPU supports.
  CudaSelectingBase(CudaDevice& device, const Rows& rows, int marks, const KvOptions& options,
                    const ForcedSelection* forced);

  // ---- the policy's parts of a step, in this order ----
  // Whether the step may be recorded, and the arguments of its operations besides this class's
  // memory and context_.
  virtual bool Replayable() const = 0;
  virtual void AddToKey(RecordingKey* key) const = 0;
  // Before the first layer of a step with decode rows; `block_` has been sent.
  virtual void BeginDecoding(Stream& stream) = 0;
  virtual void AttendDecoding(Stream& stream, int64_t layer, const MatrixView& q,
                              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                              const MatrixView& out) = 0;
  // A layer of a prompt's chunks has been attended, or only stored: its rows are in the store when
  // link_, or the stream, reaches this point.
  virtual void PromptAttended(Stream& stream, int64_t layer, const MatrixView& q,
                              const MatrixView& k) = 0;
  virtual void PromptStored(Stream& stream, int64_t layer, const MatrixView& q,
                            const MatrixView& k) = 0;
  // After the last layer, before link_ is joined.
  virtual void EndLayers(Stream& stream) = 0;
  // The rows of the step's index-th prompt, or decode sequence, are final. The space that all rows
  // of all heads take in the store has been counted.
  virtual void EndPrompt(size_t index) = 0;
  virtual void EndDecoding(size_t index) = 0;

  // ---- for derived classes ----
  // For BeginStep(): sorts the step's sequences into decoding_ and prefilling_; returns the largest
  // number of tokens of a decode sequence at its end.
  int64_t Sort(const Step& step);
  // Starts a step; call it when an operation may come before Attend(0).
  void Start(Stream& stream);
  ops::cuda::StepView Decoding() const { return block_.Decoding(context_); }
  ops::cuda::RowTable Store(int64_t layer) const;
  ops::cuda::RowTable Staging(int64_t layer) const;
  ops::cuda::DeviceHeadCounters* CountersOf(int64_t layer) const;
  // Lists of [0, lists) that are their own indices, starting at `first`.
  const int32_t* ListsFrom(int64_t first) const { return constants_.as<int32_t>() + first; }
  // Moves rows of the store to where a layer attends them: positions, and slots (rows of `to`),
  // [pairs][max_rows] as reserved, count [pairs]. Call ReserveMoves while the device is idle.
  void ReserveMoves(int64_t pairs, int64_t max_rows);
  void Move(Stream& stream, int64_t layer, const ops::cuda::RowTable& to, const int32_t* positions,
            const int32_t* slots, const int32_t* count);
  // Replaces the selection by the forced one in a measurement.
  void ForceRows(Stream& stream, int64_t layer, const ops::cuda::SelectRange* ranges,
                 int32_t* selected, const int32_t* selected_count, int64_t max_selected);
  void CountRows(Traffic* traffic, uint64_t rows) const;
  // For destructors: waits until the branch is idle, even after an error.
  void Settle();

  CudaDevice& device_;
  PinnedHost host_;
  PinnedHost store_host_;  // for the store's rows
  const Rows rows_;
  std::unique_ptr<TransferEngine> transfer_;
  StepBlock block_;
  Buffer scratch_;  // for attention and other operations that run in turn with it
  int64_t work_sequences_ = 0, work_context_ = 0;

  // State of the step in progress.
  StepCheck check_;
  std::vector<StepSequence> decoding_, prefilling_;
  bool started_ = false;
  int64_t context_ = 0;
  // Counted on the host, from lengths.
  Stats stats_;

 private:
  std::shared_ptr<const std::function<void()>> check_transfers_;
  Buffer constants_;                  // int32 [lists]: 0, 1, ...
  std::unique_ptr<Mirror> counters_;  // DeviceHeadCounters [layers][kv_heads]
  std::optional<ForcedRowTable> forced_;
  Buffer ones_;  // int32 [pairs]: every head moves its rows
  int64_t max_moved_ = 0;
  mutable std::vector<HeadCounters> heads_;

 protected:
  // Last members: they wait before the memory they use is freed.
  CudaBranch link_;

 private:
  CudaStorePrefill prefill_;
};

// Shape: that of the policy.
template <class Shape>
class CudaSelectingCache : public WithShape<CudaSelectingBase, Shape> {
 protected:
  CudaSelectingCache(CudaDevice& device, const Shape& shape,
                     std::array<ops::cuda::TableId, 2> staging, int marks, const KvOptions& options,
                     const ForcedSelection* forced)
      : WithShape<CudaSelectingBase, Shape>(shape, device, RowsOf(shape, staging), marks, options,
                                            forced) {}

 private:
  static CudaSelectingBase::Rows RowsOf(const Shape& shape,
                                        std::array<ops::cuda::TableId, 2> staging) {
    return {.layout = shape.layout,
            .group = shape.group,
            .page_rows = shape.pages.page_tokens,
            .format = shape.format,
            .staging = staging};
  }
};

}  // namespace litecache::lab

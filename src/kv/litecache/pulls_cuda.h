// How rows are transferred from the host store into slots of a GPU, and on which streams.
//
// The link has its own stream (device/cuda/branch.h), so that it moves one layer's rows while the
// next one's are selected. In a step of one sequence, pulls also have SMs of their own
// (device/cuda/sm_split.h): one kernel makes all pulls (transfer/step_pull_cuda.h), and the rest of
// the step runs on the other SMs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/sm_split.h"
#include "kv/cache.h"
#include "kv/litecache/layers_cuda.h"
#include "kv/transfer/step_pull_cuda.h"
#include "kv/transfer/transfer_engine_cuda.h"
#include "litecache/kv_options.h"

namespace litecache::kv {

class LinkPulls {
 public:
  // Marks of link(): first one for each layer whose slots are refreshed, reused in turn, then those
  // of its other user.
  static constexpr int kOtherMarks = 2;

  // prefetched: whether each layer's rows are transferred ahead of time, [layers]. ahead: by how
  // many layers; 0: no prefetch.
  LinkPulls(CudaDevice& device, const KvOptions& options, std::span<const uint8_t> prefetched,
            int64_t ahead);

  TransferEngine& engine() const { return *engine_; }
  // Null if every layer has a pull kernel of its own.
  StepPull* step_pull() const { return step_pull_.get(); }
  const SmSplit* split() const { return split_; }

  // Call after the layers' work arrays have been reallocated, while the device is idle.
  void Reserve(const CudaLayers& layers);
  // Whether steps can be recorded, and the transfers' part of a recording's key.
  bool replayable() const { return engine_->replayable(); }
  uint64_t key() const { return engine_->key(); }

  // Begins a step of `decoding` sequences and `prefilling` chunks. context: tokens of the longest
  // decode sequence.
  void BeginStep(int64_t decoding, int64_t prefilling, int64_t context);
  // Whether this step's pulls have SMs of their own.
  bool apart() const { return apart_; }
  // Issues the step's first operations on `stream`. number: StepBlock::device_number(). With a
  // split, the operations of `stream` run on the SMs that pulls leave until CudaStream::Return.
  void Start(Stream& stream, const uint32_t* number);

  // Transfers the selected rows of a layer that are not cached, in stream order.
  void Pull(Stream& stream, const ops::cuda::StepView& step, const CudaLayers& layers,
            int64_t layer);
  // The same ahead of time, after the operations enqueued on `decisions` so far, which write the
  // lists. After Await(), operations on `stream` see the rows. main: the step's stream.
  void PullAhead(Stream& main, Stream& decisions, const ops::cuda::StepView& step,
                 const CudaLayers& layers, int64_t layer);
  void Await(Stream& stream, int64_t layer);
  // Call for a prefetched layer that is pulled in stream order after all.
  void Pass(Stream& stream, int64_t layer);

  // The link's stream, for others' copies: ordered with the pulls unless those have SMs of their
  // own. Marks [first_other_mark(), first_other_mark() + kOtherMarks) belong to these copies.
  CudaBranch& link() { return link_; }
  static constexpr int first_other_mark() { return kRefreshedMarks; }
  std::vector<CudaBranch*> Branches();

  // Call when the whole step has been issued.
  void EndStep() { engine_->EndStep(); }
  // Call after waiting for the streams: the error since the last call, if any.
  std::optional<std::string> Check();

 private:
  static constexpr int kRefreshedMarks = Cache::kMostAhead + 1;
  static int RefreshedMark(int64_t layer) { return static_cast<int>(layer % kRefreshedMarks); }
  // Whether one kernel pulls the rows of all layers in this step.
  bool OnePull() const { return step_pull_ != nullptr && step_pull_->on(); }
  CudaBranch& pulls() { return apart_ ? *apart_pulls_ : link_; }

  const std::vector<uint8_t> prefetched_;
  PinnedHost host_;  // what host and GPU tell each other
  std::unique_ptr<TransferEngine> engine_;
  const SmSplit* split_;                 // null: pulls share all SMs
  const bool always_apart_;              // split also for several short sequences
  std::shared_ptr<CudaStream> rest_;     // runs a step whose pulls have SMs of their own
  std::unique_ptr<StepPull> step_pull_;  // makes the pulls of such steps
  bool apart_ = false;
  // Declared last: their destructors wait before what they use is freed.
  CudaBranch link_;
  std::optional<CudaBranch> apart_pulls_;  // only with a split
};

}  // namespace litecache::kv

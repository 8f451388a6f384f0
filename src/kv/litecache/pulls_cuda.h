// How rows come from the host store into slots of a GPU, and on which streams.
//
// The link has a stream of its own (device/cuda/branch.h), so that it moves one layer's rows while
// the next one's are chosen. Beside one sequence's step pulls have SMs of their own, too
// (device/cuda/sm_split.h), where one kernel makes them all (transfer/step_pull_cuda.h), and the
// rest of the step has all others.
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
  // Marks of link(): the layers' slots are refreshed, by turns, and then what its other user names.
  static constexpr int kOtherMarks = 2;

  // prefetched: the layers whose rows are brought ahead of time, [layers]. ahead: by how many
  // layers; 0: none.
  LinkPulls(CudaDevice& device, PinnedHost& host, const KvOptions& options,
            std::span<const uint8_t> prefetched, int64_t ahead);

  TransferEngine& engine() const { return *engine_; }
  // Null where every layer has a pull of its own.
  StepPull* step_pull() const { return step_pull_.get(); }
  const SmSplit* split() const { return split_; }

  // The layers' work arrays have changed; the device does nothing.
  void Reserve(const CudaLayers& layers);
  // Whether steps can be recorded; what a recording's key has of the transfers.
  bool replayable() const { return engine_->replayable(); }
  uint64_t key() const { return engine_->key(); }

  // A step of so many sequences and chunks; context: the longest decode sequence's, tokens.
  void BeginStep(int64_t decoding, int64_t prefilling, int64_t context);
  // Whether this step's pulls have SMs of their own.
  bool apart() const { return apart_; }
  // Begins the step's operations, on `stream`. number: StepBlock::device_number(). The stream's
  // operations go to the SMs that pulls leave, until it is given back (CudaStream::Return).
  void Start(Stream& stream, const uint32_t* number);

  // The rows that a layer's heads want and do not have: in the order of a stream's operations.
  void Pull(Stream& stream, const ops::cuda::StepView& step, const CudaLayers& layers,
            int64_t layer);
  // The same ahead of time, once the lists are what `decisions` has been given so far; then what
  // `stream` is given from there on finds the rows. main: the step's stream.
  void PullAhead(Stream& main, Stream& decisions, const ops::cuda::StepView& step,
                 const CudaLayers& layers, int64_t layer);
  void Await(Stream& stream, int64_t layer);
  // A prefetched layer whose rows come as others' do after all.
  void Pass(Stream& stream, int64_t layer);

  // For others' copies over the link, in the order of the pulls where those are not apart; its
  // marks [first_other_mark(), first_other_mark() + kOtherMarks) are theirs.
  CudaBranch& link() { return link_; }
  static constexpr int first_other_mark() { return kRefreshedMarks; }
  std::vector<CudaBranch*> Branches();

  // A step has been issued.
  void EndStep() { engine_->EndStep(); }
  // After the streams have been waited for: what failed since the last call, if anything.
  std::optional<std::string> Check();

 private:
  static constexpr int kRefreshedMarks = Cache::kMostAhead + 1;
  static int RefreshedMark(int64_t layer) { return static_cast<int>(layer % kRefreshedMarks); }
  // Whether one kernel pulls the rows of all its layers.
  bool OnePull() const { return step_pull_ != nullptr && step_pull_->on(); }
  CudaBranch& pulls() { return apart_ ? *apart_pulls_ : link_; }

  const std::vector<uint8_t> prefetched_;
  std::unique_ptr<TransferEngine> engine_;
  const SmSplit* split_;                 // null: pulls share all SMs
  const bool always_apart_;              // also beside several short sequences
  std::shared_ptr<CudaStream> rest_;     // where a step whose pulls are apart runs
  std::unique_ptr<StepPull> step_pull_;  // of such steps
  bool apart_ = false;
  // Last: they wait before what they use is freed.
  CudaBranch link_;
  std::optional<CudaBranch> apart_pulls_;  // where there is a split
};

}  // namespace litecache::kv

// The CPU threads that work in parallel with a decode step of policy retroinfer on a GPU: they
// maintain the LRU order of the block caches, one layer later. Through mapped memory the device
// publishes a layer's selection, and receives the list of rows that the layer's caches admit
// (lab/policies/retroinfer/ops/wave_index_cuda.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/background_threads.h"
#include "device/device.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/sequence_cuda.h"
#include "lab/policies/retroinfer/wave_update_cuda.h"
#include "lab/policies/retroinfer/work_cuda.h"

struct CUstream_st;

namespace litecache::lab {

class WaveAnswers {
 public:
  // noted: called with each layer's updates, pair after pair, and the device's message. host:
  // pinned memory. All must outlive this.
  using Noted = std::function<void(int64_t layer, std::span<const WaveUpdate> updates,
                                   const ops::cuda::WaveLayer& told)>;
  WaveAnswers(Device& host, const RetroShape& shape, const RetroWork& work, int threads,
              Noted noted);

  // Call before a step. sequences: those that decode; choosing: some of them have clusters.
  void Begin(std::vector<CudaWaveSequence*> sequences, bool choosing);
  bool choosing() const { return choosing_; }
  uint64_t first_number() const { return first_number_; }  // of the step's layers
  ops::cuda::WaveMailbox* mailbox() const { return mailbox_.as<ops::cuda::WaveMailbox>(); }
  // The stream that publishes the selections: if it has ended or failed, waiting stops.
  void set_stream(CUstream_st* stream) { stream_ = stream; }

  // Answers the unanswered layers before `end` as soon as their selection is published. Errors are
  // thrown once the device is no longer waiting; the caches of the step's sequences are empty in
  // that case.
  void Serve(int64_t end);
  // The number for which the device has timed out, or 0; resets it.
  uint64_t TakeFault();

 private:
  void WaitForChoices(int64_t layer);
  void Update(int64_t layer);
  void Answer(int64_t layer);
  void Forget();

  const RetroShape& shape_;
  const RetroWork& work_;
  Noted noted_;
  Buffer mailbox_;
  BackgroundThreads threads_;
  std::shared_ptr<TaskGroup> updating_ = std::make_shared<TaskGroup>();

  // State of the step in progress.
  std::vector<CudaWaveSequence*> sequences_;
  bool choosing_ = false;
  uint64_t next_number_ = 0, first_number_ = 0;
  int64_t served_ = 0;
  CUstream_st* stream_ = nullptr;
  // The shortest wait for a layer's selection: in the previous step, and in this one so far.
  std::chrono::steady_clock::duration expected_{}, shortest_ = expected_.max();
  std::vector<WaveUpdate> updates_;  // one per pair
  size_t update_count_ = 0;
};

}  // namespace litecache::lab

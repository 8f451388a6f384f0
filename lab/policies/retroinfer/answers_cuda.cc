#include "lab/policies/retroinfer/answers_cuda.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/device_error.h"

namespace litecache::lab {
namespace {

// Minimum number of clusters per thread: waking a thread takes as long as hundreds of clusters.
constexpr size_t kClustersAThread = 1000;

using Clock = std::chrono::steady_clock;
// A layer takes hundreds of microseconds. The thread sleeps until this long before the selection is
// expected, early enough for an inaccurate timer, then spins.
constexpr std::chrono::microseconds kAwake{100};
constexpr std::chrono::milliseconds kSpin{1};
// Interval between two checks whether the device is still working.
constexpr std::chrono::milliseconds kAsk{20};
constexpr uint64_t kPolls = 32;  // between two checks of the clock

void SpinOnce() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

WaveAnswers::WaveAnswers(Device& host, const RetroShape& shape, const RetroWork& work, int threads,
                         Noted noted)
    : shape_(shape),
      work_(work),
      noted_(std::move(noted)),
      mailbox_(host.Allocate(sizeof(ops::cuda::WaveMailbox))),
      threads_(threads) {
  new (mailbox_.data()) ops::cuda::WaveMailbox();
}

void WaveAnswers::Begin(std::vector<CudaWaveSequence*> sequences, bool choosing) {
  sequences_ = std::move(sequences);
  choosing_ = choosing;
  first_number_ = next_number_;
  if (choosing_) next_number_ += static_cast<uint64_t>(shape_.layout.layers);
  served_ = 0;
  expected_ = std::exchange(shortest_, Clock::duration::max());
  update_count_ = sequences_.size() * static_cast<size_t>(shape_.layout.kv_heads);
  if (updates_.size() < update_count_) updates_.resize(update_count_);
}

void WaveAnswers::WaitForChoices(int64_t layer) {
  const uint64_t number = first_number_ + static_cast<uint64_t>(layer) + 1;
  const auto chosen = [&] {
    return std::atomic_ref<const uint64_t>(mailbox()->chosen).load(std::memory_order_acquire);
  };
  const auto begin = Clock::now();
  // The first layer also waits for everything between two steps.
  const bool sleeps = layer > 0 && expected_ > kAwake && expected_ < Clock::duration::max();
  if (sleeps) std::this_thread::sleep_for(expected_ - kAwake);
  const bool late = sleeps && chosen() >= number;
  Clock::time_point asked = begin;
  for (uint64_t turn = 1; chosen() < number; ++turn) {
    SpinOnce();
    if (turn % kPolls != 0) continue;
    const Clock::time_point now = Clock::now();
    if (now - begin > kSpin) std::this_thread::yield();
    if (now - asked < kAsk) continue;
    asked = now;
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // it would be reported for the next launch
      continue;
    }
    LC_CUDA(state);
    if (chosen() < number)
      throw DeviceError("KV policy retroinfer: a step ended before all layers were answered");
  }
  // If this thread woke up late, the wait is not a measurement: half of it makes the next sleep
  // shorter.
  const Clock::duration waited = Clock::now() - begin;
  if (layer > 0) shortest_ = std::min(shortest_, late ? waited / 2 : waited);
}

void WaveAnswers::Update(int64_t index) {
  const ops::cuda::WaveLayer told = work_.Layer(index);
  const auto heads = static_cast<size_t>(shape_.layout.kv_heads);
  const int64_t stride = work_.sizes().max_chosen;
  size_t clusters = 0;
  for (size_t i = 0; i < update_count_; ++i) {
    WaveUpdate& update = updates_[i];
    update.sequence = sequences_[i / heads];
    update.list = shape_.List(index, static_cast<int64_t>(i % heads));
    update.retrieved = {told.told_ids + static_cast<int64_t>(i) * stride,
                        static_cast<size_t>(told.told_choices[i].retrieved)};
    clusters += update.retrieved.size();
  }
  const auto run = [this](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) updates_[i].Run(shape_.o.block_tokens);
  };
  // This thread takes a share.
  const size_t most = std::min(static_cast<size_t>(threads_.size()) + 1, update_count_);
  const size_t jobs = std::clamp(clusters / kClustersAThread, size_t{1}, most);
  for (size_t job = 1; job < jobs; ++job) {
    threads_.Submit(updating_, [run, begin = update_count_ * job / jobs,
                                end = update_count_ * (job + 1) / jobs] { run(begin, end); });
  }
  run(0, update_count_ / jobs);
  if (jobs > 1) updating_->Wait();
  noted_(index, {updates_.data(), update_count_}, told);
}

void WaveAnswers::Answer(int64_t layer) {
  const ops::cuda::WaveAdmissions to = work_.Layer(layer).admissions;
  int32_t item = 0, link = 0;
  to.begins[0] = 0;
  for (size_t i = 0; i < update_count_; ++i) {
    const WaveUpdate& update = updates_[i];
    for (size_t k = 0; k < update.items.size(); ++k) {
      to.items[item] = update.items[k];
      to.links_begin[item++] = link + update.links_begin[k];
    }
    std::copy(update.links.begin(), update.links.end(), to.links + link);
    link += static_cast<int32_t>(update.links.size());
    to.begins[i + 1] = item;
  }
  to.begins[update_count_ + 1] = link;
  std::atomic_ref<uint64_t>(mailbox()->admitted)
      .store(first_number_ + static_cast<uint64_t>(layer) + 1, std::memory_order_release);
}

void WaveAnswers::Serve(int64_t end) {
  if (!choosing_) return;
  try {
    for (; served_ < end; ++served_) {
      WaitForChoices(served_);
      Update(served_);
      Answer(served_);
    }
  } catch (...) {
    Forget();
    for (; served_ < end; ++served_) Answer(served_);
    throw;
  }
}

void WaveAnswers::Forget() {
  try {
    updating_->Wait();
  } catch (...) {  // one failure is enough
  }
  for (WaveUpdate& update : updates_) {
    update.items.clear();
    update.links.clear();
  }
  for (CudaWaveSequence* sequence : sequences_) {
    for (BlockCache& cache : sequence->caches) cache.Clear();
    sequence->stale_tables = true;
  }
}

uint64_t WaveAnswers::TakeFault() { return std::exchange(mailbox()->fault, 0); }

}  // namespace litecache::lab

// The CUDA backend: device memory, pinned host memory, streams. Free of CUDA's own headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/cuda/step_wait.h"
#include "device/device.h"

struct CUevent_st;
struct CUstream_st;

namespace litecache {

class Recordings;

// A kernel of a graph that is being captured.
struct CapturedKernel {
  uint64_t capture = 0;  // CUDA's number of the capture
  const void* node = nullptr;
  bool operator==(const CapturedKernel&) const = default;
};

// Operations are enqueued; Synchronize() waits and throws DeviceError for errors.
class CudaStream final : public Stream {
 public:
  // handle: a CUDA stream, which this object owns and destroys; null: creates one.
  CudaStream(int device, int sm_count, CUstream_st* handle = nullptr);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  DeviceType device_type() const override { return DeviceType::kCuda; }
  void Synchronize() override;
  // The first step of a key is issued directly, the second is captured as a graph, and all others
  // replay it: a step seen only once is not worth a capture. At most kMostSteps keys are kept.
  void Run(uint64_t key, const std::function<void()>& issue) override;
  // Synchronize() calls the function after it has waited, as long as the caller keeps the pointer:
  // the function turns errors that kernels report through memory into exceptions.
  void AddCheck(const std::shared_ptr<const std::function<void()>>& check);
  // False: every step is issued (to measure what graphs gain).
  void UseGraphs(bool use) { use_graphs_ = use; }
  // From here on this stream's work runs on `part`'s SMs (sm_split.h), after all work enqueued on
  // this stream so far; no other work may be enqueued on `part`. Lasts until Return() or the end of
  // Run().
  void Divert(std::shared_ptr<CudaStream> part);
  // Ends a diversion, if there is one.
  void Return();
  // Drops the recordings; needed after memory that they refer to has been freed.
  void DropGraphs();
  // The number of keys that are kept.
  size_t steps() const;

  CUstream_st* handle() const { return handle_; }
  // The number of SMs that its kernels run on.
  int sm_count() const { return sm_count_; }
  bool diverted() const { return handle_ != own_handle_; }

  // The most keys kept: enough for batches of up to 64 sequences in contexts of a few sizes.
  static constexpr size_t kMostSteps = 256;

  // Device memory [kArrivals]: counters by which the blocks of a kernel count those that have
  // arrived. They are zero between kernels, because each kernel resets those that it uses.
  static constexpr int64_t kArrivals = 512;
  uint32_t* arrivals() const { return arrivals_; }

  // The captured kernel that the next one may overlap, if any (ops/common/overlap.cuh).
  const CapturedKernel& last_overlapping() const { return last_overlapping_; }
  void set_last_overlapping(const CapturedKernel& kernel) { last_overlapping_ = kernel; }

  // See machine.h.
  void MakeBatchInvariant() { batch_invariant_ = true; }
  bool batch_invariant() const { return batch_invariant_; }

  // State that matrix products keep for each stream (ops/linear/gemm_cuda.h); freed with it.
  void* products() const { return products_.get(); }
  void set_products(std::shared_ptr<void> products) { products_ = std::move(products); }

 private:
  // Calls issue() and ends a diversion that it leaves open.
  void Issue(const std::function<void()>& issue);
  // Seconds that the recorded step just waited for took, if no work was enqueued behind it.
  std::optional<double> StepSeconds() const;

  CUstream_st* handle_;  // the part's handle while diverted
  int sm_count_;
  uint32_t* arrivals_ = nullptr;
  std::shared_ptr<void> products_;
  CapturedKernel last_overlapping_;
  bool use_graphs_ = true;
  bool batch_invariant_ = false;
  std::vector<std::weak_ptr<const std::function<void()>>> checks_;
  std::unique_ptr<Recordings> recordings_;
  StepWait step_wait_;
  CUevent_st *step_begin_ = nullptr, *step_end_ = nullptr;  // of the recorded step launched last
  CUstream_st* own_handle_;
  int own_sm_count_;
  CUevent_st* turn_ = nullptr;        // the point of the last diversion or return
  std::shared_ptr<CudaStream> part_;  // the target of the last diversion
};

// Casts to a CUDA stream; CHECK-fails for another backend's stream.
CudaStream& AsCuda(Stream& stream);

class CudaDevice final : public Device {
 public:
  // Throws DeviceError if there is no such GPU or no driver that runs this program.
  explicit CudaDevice(int index = 0);
  ~CudaDevice() override;

  DeviceType type() const override { return DeviceType::kCuda; }
  DeviceInfo Info() const override;
  // cudaMalloc: aligned to 256 bytes, not zeroed.
  Buffer Allocate(size_t bytes) override;
  std::unique_ptr<Stream> CreateStream() override;
  std::unique_ptr<Mirror> CreateMirror(size_t bytes) override;

  int index() const { return index_; }
  int sm_count() const { return sm_count_; }
  int compute_capability() const { return capability_; }  // 90 for sm_90

  void Upload(void* target, const void* host, size_t bytes) override;
  void Download(void* host, const void* source, size_t bytes) override;
  void CopyWithin(void* target, const void* source, size_t bytes) override;
  // Blocking; sources and targets in host or device memory.
  void Copy(void* target, const void* source, size_t bytes);
  void Zero(void* target, size_t bytes);

 private:
  int index_;
  int sm_count_ = 0;
  int capability_ = 0;
};

// What reads most of a PinnedHost's memory, which decides how the GPU maps it. The driver maps
// registered memory in pages of 4 KiB and managed memory in pages of 2 MiB. Copies are 6% faster
// from the former (55 GB/s). Kernels that read rows here and there, beside others that use all of
// the GPU's memory bandwidth, wait for the page tables of the former: 7,000 rows of 256 bytes, of a
// million, take 106 us instead of 43, and a decode step at 131,000 tokens 7.74 ms instead of 7.08.
enum class ReadBy { kCopies, kKernels };

// Host memory that the GPU reads and writes over the link, at the same address: huge pages touched
// by several threads, then registered (a tenth of cudaHostAlloc's time for large stores); or, for
// kernels, managed memory that stays on the host, where the system has it. It is a Device so that a
// pool of pages can allocate from it.
class PinnedHost final : public Device {
 public:
  // gpu must outlive this object.
  explicit PinnedHost(CudaDevice& gpu, ReadBy reader = ReadBy::kCopies)
      : gpu_(gpu), reader_(reader) {}
  DeviceType type() const override { return DeviceType::kCpu; }
  DeviceInfo Info() const override;  // the machine's memory
  // Throws CapacityError, which names the limit on locked memory if that is the cause.
  Buffer Allocate(size_t bytes) override;
  std::unique_ptr<Stream> CreateStream() override;
  std::unique_ptr<Mirror> CreateMirror(size_t bytes) override;
  void Upload(void* target, const void* host, size_t bytes) override;
  void Download(void* host, const void* source, size_t bytes) override;
  void CopyWithin(void* target, const void* source, size_t bytes) override;

 private:
  CudaDevice& gpu_;
  const ReadBy reader_;
};

}  // namespace litecache

// Divides a GPU's SMs into two parts, so that kernels of one never share an SM with those of the
// other: an SM returns loads in the order in which they were requested, and a load over the link
// delays those behind it for microseconds (lab/notes/gpu/litecache.md, "What a step waits for
// beside a pull").
#pragma once

#include <memory>
#include <string>

#include "device/cuda/cuda_device.h"

struct CUgreenCtx_st;

namespace litecache {

// Two of the driver's green contexts (CUDA 12.5). Streams of both take part in one recording. A
// split exists until the process ends, because recordings refer to its contexts.
class SmSplit {
 public:
  // The first `few` SMs, rounded up to what the GPU can set apart, and the rest. Null, with the
  // reason in *reason, if the driver or the GPU cannot split them, or if less than half of the
  // SMs would be left. Calls with the same arguments return the same split.
  static const SmSplit* Get(int device, int few, std::string* reason);

  int few() const { return few_.sms; }
  int rest() const { return rest_.sms; }
  // A stream whose kernels run on the part's SMs; its sm_count() is their number. first: blocks of
  // its kernels have priority over those of other streams.
  std::unique_ptr<CudaStream> StreamOfFew(bool first) const { return CreateStream(few_, first); }
  std::unique_ptr<CudaStream> StreamOfRest(bool first) const { return CreateStream(rest_, first); }

 private:
  struct Part {
    CUgreenCtx_st* context = nullptr;
    int sms = 0;
  };
  SmSplit() = default;
  static std::unique_ptr<SmSplit> Create(int device, int few, std::string* reason);
  std::unique_ptr<CudaStream> CreateStream(const Part& part, bool first) const;

  int device_ = 0;
  Part few_, rest_;
};

}  // namespace litecache

// Where is decided on layers ahead of time: which rows their heads want, and the slots for them.
// One layer after another; two chains by turns were as slow (lab/notes/gpu/litecache.md).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "device/cuda/branch.h"
#include "device/cuda/sm_split.h"

namespace litecache::kv {

class Decisions {
 public:
  struct Chain {
    CudaBranch* branch = nullptr;
    void* scratch = nullptr;
    // Of what replaces a selection, beside it (CudaResultOverride); null: on the same stream.
    CudaBranch* aside = nullptr;
    void* aside_scratch = nullptr;
  };

  // split: has the SMs of steps whose pulls have SMs of their own; null: no step has. aside:
  // whether there is a second branch.
  Decisions(CudaDevice& device, const SmSplit* split, bool aside);

  // Bytes of scratch; no recording may know the old ones.
  void Reserve(size_t scratch_bytes, size_t aside_bytes);
  // apart: of a step whose pulls have SMs of their own.
  Chain Of(bool apart);
  const Buffer& memory() const { return memory_; }
  std::vector<CudaBranch*> Branches();

 private:
  struct Streams {
    Streams(CudaDevice& device, bool has_aside);    // on all SMs
    Streams(const SmSplit& split, bool has_aside);  // on those that pulls leave
    CudaBranch decisions;
    std::optional<CudaBranch> aside;
  };

  CudaDevice& device_;
  Buffer memory_;             // scratch, aside's scratch
  size_t scratch_bytes_ = 0;  // of the first
  // Last: they wait before what they use is freed.
  Streams shared_;
  std::optional<Streams> apart_;
};

}  // namespace litecache::kv

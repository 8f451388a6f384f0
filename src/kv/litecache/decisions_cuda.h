// The streams on which layers are decided ahead of time: which rows their heads need, and the slots
// for them. One layer after another; two alternating chains were as slow
// (lab/notes/gpu/litecache.md).
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
    // The branch that prepares a selection's replacement (CudaResultOverride); null: same stream.
    CudaBranch* aside = nullptr;
    void* aside_scratch = nullptr;
  };

  // split: the partition of the SMs for steps whose pulls have separate SMs; null: no step's have.
  // aside: whether there is a second branch.
  Decisions(CudaDevice& device, const SmSplit* split, bool aside);

  // Sizes in bytes; recorded graphs must not refer to the old scratch.
  void Reserve(size_t scratch_bytes, size_t aside_bytes);
  // apart: whether the step's pulls have separate SMs.
  Chain Of(bool apart);
  const Buffer& memory() const { return memory_; }
  std::vector<CudaBranch*> Branches();

 private:
  struct Streams {
    Streams(CudaDevice& device, bool has_aside);    // on all SMs
    Streams(const SmSplit& split, bool has_aside);  // on the SMs that pulls leave
    CudaBranch decisions;
    std::optional<CudaBranch> aside;
  };

  CudaDevice& device_;
  Buffer memory_;             // scratch, then aside's scratch
  size_t scratch_bytes_ = 0;  // size of the first part
  // Declared last: their destructors wait before the memory is freed.
  Streams shared_;
  std::optional<Streams> apart_;
};

}  // namespace litecache::kv

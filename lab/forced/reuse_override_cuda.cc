#include "lab/forced/reuse_override_cuda.h"

#include <algorithm>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "lab/forced/force_reuse_cuda.h"

namespace litecache::kv {
namespace {

bool ReplacesRows(const std::vector<ops::ForcedHead>& heads) {
  return std::ranges::any_of(heads, [](const ops::ForcedHead& head) { return head.kept >= 0; });
}

Buffer Upload(CudaDevice& device, const std::vector<ops::ForcedHead>& heads) {
  Buffer memory = device.Allocate(heads.size() * sizeof(ops::ForcedHead));
  device.Upload(memory.data(), heads.data(), memory.size());
  return memory;
}

class CudaReuseOverride final : public CudaResultOverride {
 public:
  CudaReuseOverride(CudaDevice& device, const ForcedReuse& reuse)
      : steps_(reuse.steps),
        a_step_(static_cast<int64_t>(reuse.heads.size()) / reuse.steps),
        replaces_rows_(ReplacesRows(reuse.heads) || ReplacesRows(reuse.checks)),
        heads_(Upload(device, reuse.heads)),
        checks_(Upload(device, reuse.checks)) {}

  void AfterLookup(Stream& stream, const Place& at) const override {
    ops::cuda::ForceHits(stream, at.step, at.shape, at.layer, Layer(at), at.condition);
  }
  bool replaces_rows() const override { return replaces_rows_; }
  size_t ScratchBytes(const ops::cuda::LiteCacheShape& shape, int64_t capacity,
                      int64_t max_context) const override {
    return ops::cuda::ForceScratchBytes(shape, capacity, max_context);
  }
  void BesideSelection(Stream& stream, const Place& at, void* scratch) const override {
    ops::cuda::MarkCached(stream, at.step, at.shape, at.layer, Layer(at), scratch);
  }
  void AfterSelection(Stream& stream, const Place& at, void* scratch) const override {
    ops::cuda::ForceOverlap(stream, at.step, at.shape, at.layer, Layer(at), scratch);
  }

 private:
  ops::cuda::ForcedLayer Layer(const Place& at) const {
    return {.heads = (at.verifying ? checks_ : heads_).as<const ops::ForcedHead>() +
                     at.index * at.shape.kv_heads,
            .steps = static_cast<int32_t>(steps_),
            .stride = static_cast<int32_t>(a_step_)};
  }

  int64_t steps_, a_step_;
  bool replaces_rows_;
  Buffer heads_, checks_;  // ForcedHead [steps][layers][kv_heads]
};

}  // namespace

std::unique_ptr<const CudaResultOverride> CreateCudaReuseOverride(CudaDevice& device,
                                                                  const ForcedReuse& reuse) {
  return std::make_unique<const CudaReuseOverride>(device, reuse);
}

}  // namespace litecache::kv

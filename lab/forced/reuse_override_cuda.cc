#include "lab/forced/reuse_override_cuda.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "lab/forced/force_reuse_cuda.h"

namespace litecache::lab {
namespace {

// Above and below all similarities.
constexpr float kMisses = 2, kHits = -2;

bool ReplacesRows(const std::vector<ops::ForcedHead>& heads) {
  return std::ranges::any_of(heads, [](const ops::ForcedHead& head) { return head.kept >= 0; });
}

// The steps' thresholds: every similarity, or none, is above a forced result's.
std::vector<float> ThresholdsOf(const std::vector<ops::ForcedHead>& heads,
                                const std::vector<float>& taus) {
  std::vector<float> thresholds;
  thresholds.reserve(heads.size());
  for (size_t i = 0; i < heads.size(); ++i) {
    const int32_t hit = heads[i].hit;
    thresholds.push_back(hit < 0 ? taus[i % taus.size()] : hit == 1 ? kHits : kMisses);
  }
  return thresholds;
}

template <class T>
Buffer Upload(CudaDevice& device, const std::vector<T>& values) {
  Buffer memory = device.Allocate(values.size() * sizeof(T));
  device.Upload(memory.data(), values.data(), memory.size());
  return memory;
}

class CudaReuseOverride final : public CudaResultOverride {
 public:
  CudaReuseOverride(CudaDevice& device, const ForcedReuse& reuse, int64_t kv_heads)
      : device_(device),
        replaces_rows_(ReplacesRows(reuse.heads) || ReplacesRows(reuse.checks)),
        heads_(Upload(device, reuse.heads)),
        checks_(Upload(device, reuse.checks)),
        taus_(Upload(device, ThresholdsOf(reuse.heads, reuse.taus))),
        check_taus_(Upload(device, ThresholdsOf(reuse.checks, reuse.taus))) {
    forced_.table = taus_.as<const float>();
    forced_.check_table = check_taus_.as<const float>();
    forced_.steps = static_cast<int32_t>(reuse.steps);
    forced_.heads = static_cast<int32_t>(reuse.taus.size());
    forced_.kv_heads = static_cast<int32_t>(kv_heads);
    // Lists are made for all heads or for none.
    for (const std::vector<ops::ForcedHead>* table : {&reuse.heads, &reuse.checks}) {
      for (const ops::ForcedHead& head : *table) {
        LC_CHECK(!replaces_rows_ || head.kept >= 0 || head.hit == 1);
      }
    }
  }

  void Reserve(int64_t sequences) override {
    const int64_t values = forced_.heads * sequences;
    results_ = Buffer();
    results_ = device_.Allocate(static_cast<size_t>(2 * values) * sizeof(float));
    forced_.sequences = static_cast<int32_t>(sequences);
    forced_.lookups = results_.as<float>();
    forced_.checks = forced_.lookups + values;
  }
  const Buffer& memory() const override { return results_; }
  void BeginStep(Stream& stream, const ops::cuda::StepView& step) const override {
    ops::cuda::ForceThresholds(stream, step, forced_);
  }
  const float* Thresholds(int64_t layer, bool verifying) const override {
    return (verifying ? forced_.checks : forced_.lookups) +
           layer * forced_.sequences * forced_.kv_heads;
  }

  bool replaces_rows() const override { return replaces_rows_; }
  size_t ScratchBytes(const ops::cuda::LiteCacheShape& shape, int64_t capacity,
                      int64_t max_context) const override {
    return ListBytes(shape, capacity) + ops::cuda::ForceScratchBytes(shape, capacity, max_context);
  }
  Lists Select(Stream& stream, const Place& at, void* scratch) const override {
    const int64_t pairs = int64_t{at.step.capacity} * at.shape.kv_heads;
    Lists lists;
    lists.selected_count = static_cast<int32_t*>(scratch);
    lists.selected = lists.selected_count + pairs;
    ops::cuda::ForceOverlap(
        stream, at.step, at.shape, at.layer,
        {.heads = (at.verifying ? checks_ : heads_).as<const ops::ForcedHead>() +
                  at.index * at.shape.kv_heads,
         .steps = forced_.steps,
         .stride = forced_.heads},
        lists.selected, lists.selected_count,
        static_cast<std::byte*>(scratch) + ListBytes(at.shape, at.step.capacity));
    return lists;
  }

 private:
  static size_t ListBytes(const ops::cuda::LiteCacheShape& shape, int64_t capacity) {
    constexpr size_t kAlignment = 256;
    const auto ints = static_cast<size_t>(capacity * shape.kv_heads * (shape.max_rows + 1));
    return (ints * sizeof(int32_t) + kAlignment - 1) / kAlignment * kAlignment;
  }

  CudaDevice& device_;
  bool replaces_rows_;
  Buffer heads_, checks_;     // ForcedHead [steps][layers][kv_heads]
  Buffer taus_, check_taus_;  // the same of thresholds
  Buffer results_;
  ops::cuda::ForcedThresholds forced_;
};

}  // namespace

std::unique_ptr<CudaResultOverride> CreateCudaReuseOverride(CudaDevice& device,
                                                            const ForcedReuse& reuse) {
  return std::make_unique<CudaReuseOverride>(device, reuse, reuse.kv_heads);
}

}  // namespace litecache::lab

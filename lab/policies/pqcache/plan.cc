// The plan of policy pqcache.

#include <fmt/format.h>

#include "kv/api/policy_settings.h"
#include "kv/cache_plan.h"
#include "kv/heads/profile.h"
#include "kv/with_shape.h"
#include "lab/forced/forced_selection.h"
#include "lab/policies/common/gpu_heads.h"
#include "lab/policies/pqcache/options.h"
#include "lab/policies/pqcache/policy.h"
#include "lab/policies/pqcache/pq_cache.h"
#include "lab/trace/replays_trace.h"
#include "ops/attention/attention.h"
#include "ops/common/available_cuda.h"
#include "ops/select/selection.h"

namespace litecache::lab {
namespace {

using pqcache::Shape;

class PqPlan final : public WithShape<CachePlan, Shape>, public ReplaysTrace {
 public:
  PqPlan(const Layout& layout, const KvOptions& options, DeviceType device)
      : WithShape(Shape(layout, options.settings.Of<PqCacheOptions>(), device)),
        options_(options) {}

  uint64_t ScratchBytes(int64_t sequences, int64_t tokens, int threads) const override {
    const Layout& layout = shape_.layout;
    const auto attention = [&](int64_t decoding) {
      return ops::AttentionScratchBytes(layout.kv_heads, shape_.group, layout.head_dim, decoding);
    };
    const auto n = static_cast<uint64_t>(tokens), s = static_cast<uint64_t>(sequences);
    // Clustering: a part's values and labels per thread, and the resulting codes on the host.
    const uint64_t clustering =
        n * (static_cast<uint64_t>(layout.kv_heads * layout.head_dim) * sizeof(float) +
             static_cast<uint64_t>(layout.kv_heads * shape_.codes.subspaces) * 2 *
                 sizeof(int32_t)) +
        s * n * static_cast<uint64_t>(shape_.lists() * shape_.codes.subspaces);
    // Lists of selected, hit and missed rows; all rows for a sequence without an index.
    const uint64_t lists = s * n * static_cast<uint64_t>(layout.kv_heads) * 3 * sizeof(int32_t);
    if constexpr (ops::cuda::kAvailable) {
      // Clustering takes host memory.
      if (shape_.on_gpu) return pqcache::CudaScratchBytes(shape_, sequences, tokens, transfer());
    }
    return attention(0) + attention(sequences) +
           ops::SelectionScratchBytes(sequences * layout.kv_heads, tokens,
                                      static_cast<double>(shape_.group), threads) +
           clustering + lists;
  }
  std::string retriever() const override {
    return fmt::format("product quantization, {} parts of {} bits", shape_.codes.subspaces,
                       shape_.codes.bits);
  }
  std::string transfer() const override {
    if (!shape_.on_gpu) return "";
    return options_.transfer == "auto" ? "gpu-pull" : options_.transfer;
  }
  std::string DeviceHolds() const override {
    return "sink and recent rows, the block cache, codes and centroids";
  }
  std::vector<std::string> Notes() const override {
    const PqCacheOptions& o = options_.settings.Of<PqCacheOptions>();
    return {
        fmt::format("{} sink tokens, and of the prompt {:g}% as top rows and {:g}% as recent rows",
                    o.sink_tokens, 50 * o.share, 50 * o.share),
        fmt::format("block cache of {} blocks of {} tokens a layer", shape_.blocks,
                    shape_.block_tokens),
        o.iterations > 0
            ? fmt::format("{} iterations of k-means", o.iterations)
            : "3 to 300 iterations of k-means, as time allows: answers vary with the machine's "
              "speed; set pqcache.iterations for answers that do not"};
  }
  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    if constexpr (ops::cuda::kAvailable) {
      if (shape_.on_gpu)
        return pqcache::CreateCudaCache(device, shape_, options_, budget, forced_.get());
    }
    return pqcache::CreateCpuCache(device, shape_, options_, budget, forced_);
  }
  void Replay(std::shared_ptr<const Trace> trace) override {
    forced_ = std::make_shared<const ForcedSelection>(
        std::move(trace), shape_.layout, options_.settings.Of<PqCacheOptions>().share / 2);
  }

 private:
  KvOptions options_;
  std::shared_ptr<const ForcedSelection> forced_;  // null: none
};

std::unique_ptr<CachePlan> Plan(const Layout& layout, const KvOptions& options,
                                std::shared_ptr<const Profile>,  // NOLINT: the registry's
                                DeviceType device) {
  CheckLayout(layout);
  CheckGpuHeads(layout, device, "pqcache");
  return std::make_unique<PqPlan>(layout, options, device);
}

}  // namespace
}  // namespace litecache::lab

namespace litecache::lab::pqcache {

kv::Policy MakePolicy() {
  return {.name = "pqcache",
          .summary = "rows chosen by quantized keys, and a block cache",
          .options = {"host_memory", "transfer", "transfer_threads", "measure_recall"},
          .settings = kv::SettingsOf("pqcache", PqCacheOptionTable()),
          .plan = Plan};
}

}  // namespace litecache::lab::pqcache

// The plan of policy retroinfer.

#include "base/error.h"
#include "kv/api/policy_settings.h"
#include "kv/cache_plan.h"
#include "kv/heads/profile.h"
#include "kv/with_shape.h"
#include "lab/forced/forced_selection.h"
#include "lab/policies/common/gpu_heads.h"
#include "lab/policies/retroinfer/policy.h"
#include "lab/policies/retroinfer/retro_cache.h"
#include "lab/policies/retroinfer/shape.h"
#include "lab/trace/replays_trace.h"
#include "ops/attention/attention.h"
#include "ops/attention/row_attention.h"
#include "ops/common/available_cuda.h"
#include "ops/select/selection.h"

namespace litecache::lab {
namespace {

class RetroPlan final : public WithShape<CachePlan, RetroShape>, public ReplaysTrace {
 public:
  RetroPlan(const Layout& layout, const KvOptions& options, DeviceType device)
      : WithShape(RetroShape(layout, options, device)) {}

  std::string retriever() const override { return "wave index"; }
  std::string transfer() const override { return shape_.on_gpu ? "gpu-pull" : ""; }
  std::string DeviceHolds() const override {
    return "steady zone, index of clusters, cached blocks, execution buffer";
  }

  uint64_t ScratchBytes(int64_t sequences, int64_t tokens, int threads) const override {
    if constexpr (ops::cuda::kAvailable) {
      if (shape_.on_gpu) return CudaRetroScratchBytes(shape_, sequences, tokens);
    }
    const Layout& layout = shape_.layout;
    const auto attention = [&](int64_t decoding) {
      return ops::AttentionScratchBytes(layout.kv_heads, shape_.group, layout.head_dim, decoding);
    };
    const auto bytes = [](int64_t count, uint64_t each) {
      return static_cast<uint64_t>(count) * each;
    };
    const int64_t clusters = shape_.ClusterRoom(tokens), heads = sequences * layout.kv_heads;
    // Scores of the clusters, and the states that estimates pass to the attention, which copies
    // them.
    const int64_t scores = heads * (shape_.group + 1) * clusters;
    const int64_t states =
        2 * heads * ops::EstimateStates(clusters) * ops::StateSize(shape_.group, layout.head_dim);
    // A thread that builds an index holds the rows of one list twice and its centroids three times;
    // of up to two prompts that end together, the clusters of all tokens are known before their
    // rows are moved.
    const uint64_t build = static_cast<uint64_t>(threads) *
                               (bytes(tokens, shape_.format.row_bytes() + 2 * sizeof(int32_t)) +
                                bytes(3 * clusters * layout.head_dim, sizeof(float))) +
                           bytes(2 * shape_.lists * tokens, sizeof(int32_t));
    return attention(0) + attention(sequences) +
           ops::SelectionScratchBytes(heads, clusters, static_cast<double>(shape_.group), threads) +
           bytes(scores + states, sizeof(float)) + build +
           bytes(sequences * shape_.lists * clusters, RetroShape::kDescriptorBytes);
  }

  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    if constexpr (ops::cuda::kAvailable) {
      if (shape_.on_gpu) return CreateCudaRetroCache(device, shape_, budget, forced_.get());
    }
    return CreateCpuRetroCache(device, shape_, budget, forced_);
  }
  void Replay(std::shared_ptr<const Trace> trace) override {
    if (trace->clusters == 0) {
      throw InvalidArgument("the trace ({}) has no clusters, which policy retroinfer replays",
                            trace->Describe());
    }
    forced_ = std::make_shared<const ForcedSelection>(std::move(trace), shape_.layout,
                                                      shape_.o.retrieval);
  }

 private:
  std::shared_ptr<const ForcedSelection> forced_;  // null: none
};

std::unique_ptr<CachePlan> Plan(const Layout& layout, const KvOptions& options,
                                std::shared_ptr<const Profile>,  // NOLINT: the registry's
                                DeviceType device) {
  CheckLayout(layout);
  CheckGpuHeads(layout, device, "retroinfer");
  if (options.measure_recall) {
    throw InvalidArgument(
        "KV options: measure_recall compares rows that a retriever selects, and policy retroinfer "
        "selects clusters; turn it off");
  }
  if (options.host_rows != "auto" && options.host_rows != "full") {
    throw Unsupported(
        "KV policy retroinfer keeps host rows as they are; host_rows = '{}' is not built",
        options.host_rows);
  }
  return std::make_unique<RetroPlan>(layout, options, device);
}

}  // namespace
}  // namespace litecache::lab

namespace litecache::lab::retroinfer {

kv::Policy MakePolicy() {
  return {.name = "retroinfer",
          .summary = "rows on the host in clusters, the best attended, the next ones estimated",
          .options = {"host_memory", "sink_tokens", "recent_tokens"},
          .settings = kv::SettingsOf("retroinfer", RetroInferOptionTable()),
          .plan = Plan};
}

}  // namespace litecache::lab::retroinfer

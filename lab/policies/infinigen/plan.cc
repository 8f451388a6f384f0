// The plan of policy infinigen.

#include <fmt/format.h>

#include <utility>

#include "kv/api/policy_settings.h"
#include "kv/cache_plan.h"
#include "kv/heads/profile.h"
#include "kv/with_shape.h"
#include "lab/forced/forced_selection.h"
#include "lab/policies/common/gpu_heads.h"
#include "lab/policies/infinigen/infinigen_cache.h"
#include "lab/policies/infinigen/options.h"
#include "lab/policies/infinigen/policy.h"
#include "lab/policies/infinigen/speculation.h"
#include "lab/trace/replays_trace.h"
#include "ops/attention/attention.h"
#include "ops/common/available_cuda.h"
#include "ops/select/selection.h"

namespace litecache::lab {
namespace {

using infinigen::Shape;
using infinigen::Speculation;

class InfiniGenPlan final : public WithShape<CachePlan, Shape>, public ReplaysTrace {
 public:
  InfiniGenPlan(const Layout& layout, const KvOptions& options,
                std::shared_ptr<const Profile> profile, DeviceType device)
      : WithShape(Shape(layout, options.settings.Of<InfiniGenOptions>(), device)),
        options_(options),
        profile_(std::move(profile)) {
    Speculation(shape_, options_.settings.Of<InfiniGenOptions>(),
                profile_.get());  // throws the errors of Create() early
  }

  uint64_t ScratchBytes(int64_t sequences, int64_t tokens, int threads) const override {
    if constexpr (ops::cuda::kAvailable) {
      if (shape_.on_gpu) return infinigen::CudaScratchBytes(shape_, sequences, tokens, transfer());
    }
    const Layout& layout = shape_.layout;
    const auto attention = [&](int64_t decoding) {
      return ops::AttentionScratchBytes(layout.kv_heads, shape_.group, layout.head_dim, decoding);
    };
    // Margins, and positions and slots of the rows that two layers fetch; all rows for dense
    // layers.
    const auto items = static_cast<uint64_t>(sequences * layout.kv_heads * tokens);
    return attention(0) + attention(sequences) +
           ops::SelectionScratchBytes(sequences * layout.kv_heads, tokens,
                                      static_cast<double>(shape_.group), threads) +
           items * (sizeof(float) + Shape::kBuffers * 2 * sizeof(int32_t));
  }
  std::string retriever() const override {
    return fmt::format("partial keys, {} of {} channels", shape_.partial.rank,
                       shape_.layout.head_dim);
  }
  bool prefetches() const override { return true; }
  std::string transfer() const override {
    if (!shape_.on_gpu) return "";
    return options_.transfer == "auto" ? "gpu-pull" : options_.transfer;
  }
  std::string DeviceHolds() const override {
    return "partial keys, and a layer's rows while it is attended and the next one's arrive";
  }
  std::string Warning() const override {
    return profile_ != nullptr
               ? ""
               : "no profile: queries and keys are not skewed, which finds fewer of the top rows; "
                 "measure one with `litecache profile`";
  }
  std::vector<std::string> Notes() const override {
    const InfiniGenOptions& o = options_.settings.Of<InfiniGenOptions>();
    return {
        fmt::format("rows within {} of the best score, at most {:g}% of the context; the first "
                    "{} layers attend all rows",
                    o.alpha, 100 * o.cap, shape_.dense_layers)};
  }
  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    if constexpr (ops::cuda::kAvailable) {
      if (shape_.on_gpu) {
        return infinigen::CreateCudaCache(device, shape_, options_, profile_.get(), budget,
                                          forced_.get());
      }
    }
    return infinigen::CreateCpuCache(device, shape_, options_, profile_.get(), budget, forced_);
  }
  void Replay(std::shared_ptr<const Trace> trace) override {
    forced_ = std::make_shared<const ForcedSelection>(std::move(trace), shape_.layout,
                                                      options_.settings.Of<InfiniGenOptions>().cap);
  }

 private:
  KvOptions options_;
  std::shared_ptr<const Profile> profile_;
  std::shared_ptr<const ForcedSelection> forced_;  // null: none
};

std::unique_ptr<CachePlan> Plan(const Layout& layout, const KvOptions& options,
                                std::shared_ptr<const Profile> profile, DeviceType device) {
  CheckLayout(layout);
  CheckGpuHeads(layout, device, "infinigen");
  return std::make_unique<InfiniGenPlan>(layout, options, std::move(profile), device);
}

}  // namespace
}  // namespace litecache::lab

namespace litecache::lab::infinigen {

kv::Policy MakePolicy() {
  return {.name = "infinigen",
          .summary = "rows chosen a layer ahead",
          .uses_profile = true,
          .options = {"host_memory", "profile", "transfer", "transfer_threads", "measure_recall"},
          .settings = kv::SettingsOf("infinigen", InfiniGenOptionTable()),
          .plan = Plan};
}

}  // namespace litecache::lab::infinigen

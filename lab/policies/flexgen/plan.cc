// The plan of policy `flexgen`: all rows on the host, a share of the heads on the device.

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "kv/api/policy_settings.h"
#include "kv/cache_plan.h"
#include "kv/heads/profile.h"
#include "kv/offload/offload_cache.h"
#include "kv/step/attention_scratch_cuda.h"
#include "lab/namespaces.h"
#include "lab/policies/flexgen/options.h"
#include "lab/policies/flexgen/policy.h"
#include "ops/attention/attention.h"
#include "ops/common/available_cuda.h"

namespace litecache::lab {
namespace {

class FlexGenPlan final : public CachePlan {
 public:
  FlexGenPlan(const Layout& layout, const KvOptions& options, DeviceType device)
      : options_(options),
        shape_(layout, options, options.settings.Of<FlexGenOptions>().device_share,
               /*keeps_inputs=*/false, device) {}

  const Layout& layout() const override { return shape_.layout; }
  TierBytes BytesFor(int64_t tokens) const override { return shape_.BytesFor(tokens, 0); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return shape_.ForkBytesFor(shared, tokens, 0);
  }
  uint64_t ScratchBytes(int64_t sequences, int64_t, int) const override {
    const Layout& layout = shape_.layout;
    if constexpr (ops::cuda::kAvailable) {
      if (shape_.on_gpu) return CudaAttentionScratchBytes(layout, sequences);
    }
    // One sequence after another.
    return ops::AttentionScratchBytes(layout.kv_heads, layout.q_heads / layout.kv_heads,
                                      layout.head_dim, 1);
  }
  std::string DeviceHolds() const override {
    return fmt::format("{} buffers of a layer's rows{}", shape_.buffers(),
                       shape_.device_heads > 0 ? ", and the rows of heads that stay" : "");
  }
  std::vector<std::string> Notes() const override {
    return {fmt::format(
        "{} of {} KV heads a layer on the device, the others' rows come from the "
        "host ({}) for every layer of every step",
        shape_.device_heads, shape_.layout.kv_heads, Name(shape_.store_format.encoding))};
  }
  std::string Identity() const override {
    return fmt::format("flexgen {}; store {}; {} heads on the device", Describe(shape_.layout),
                       Name(shape_.store_format.encoding), shape_.device_heads);
  }
  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    return offload::CreateOffloadCache(device, options_.policy, shape_, std::nullopt, budget);
  }

 private:
  KvOptions options_;
  offload::Shape shape_;
};

std::unique_ptr<CachePlan> Plan(const Layout& layout, const KvOptions& options,
                                std::shared_ptr<const Profile>,  // NOLINT: the registry's
                                DeviceType device) {
  CheckLayout(layout);
  return std::make_unique<FlexGenPlan>(layout, options, device);
}

}  // namespace
}  // namespace litecache::lab

namespace litecache::lab::flexgen {

kv::Policy MakePolicy() {
  return {.name = "flexgen",
          .summary = "rows on the host, brought for every layer",
          .options = {"host_memory", "host_rows", "batch_groups"},
          .settings = kv::SettingsOf("flexgen", FlexGenOptionTable()),
          .plan = Plan};
}

}  // namespace litecache::lab::flexgen

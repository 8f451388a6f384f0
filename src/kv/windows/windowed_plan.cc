// The plan of a cache for a model with sliding windows.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "kv/api/policy_registry.h"
#include "kv/cache_plan.h"
#include "kv/windows/windowed_cache.h"

namespace litecache::kv {
namespace {

using windows::Parts;

class WindowedPlan final : public CachePlan {
 public:
  WindowedPlan(const Layout& layout, Parts parts, std::string policy,
               std::unique_ptr<CachePlan> whole, std::unique_ptr<CachePlan> window)
      : layout_(layout),
        parts_(std::move(parts)),
        policy_(std::move(policy)),
        whole_(std::move(whole)),
        window_(std::move(window)) {}

  const Layout& layout() const override { return layout_; }
  TierBytes BytesFor(int64_t tokens) const override {
    return Sum([&](const CachePlan& plan) { return plan.BytesFor(tokens); });
  }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return Sum([&](const CachePlan& plan) { return plan.ForkBytesFor(shared, tokens); });
  }
  uint64_t ScratchBytes(int64_t sequences, int64_t tokens, int threads) const override {
    uint64_t bytes = 0;
    for (const CachePlan* plan : {whole_.get(), window_.get()}) {
      if (plan != nullptr) bytes += plan->ScratchBytes(sequences, tokens, threads);
    }
    return bytes;
  }
  const HeadPlan* heads() const override { return whole_ != nullptr ? whole_->heads() : nullptr; }
  std::string retriever() const override { return whole_ != nullptr ? whole_->retriever() : ""; }
  std::string transfer() const override { return whole_ != nullptr ? whole_->transfer() : ""; }
  bool DropResidentHead() override { return whole_ != nullptr && whole_->DropResidentHead(); }
  std::string DeviceHolds() const override {
    const std::string windows = fmt::format("the last {} tokens' rows of {} layers", layout_.window,
                                            parts_.window.layout.layers);
    const std::string whole = whole_ != nullptr ? whole_->DeviceHolds() : "";
    return whole.empty() ? windows : fmt::format("{}; {}", whole, windows);
  }
  std::vector<NamedBytes> DeviceParts(int64_t tokens) const override {
    std::vector<NamedBytes> parts;
    if (whole_ != nullptr) parts = whole_->DeviceParts(tokens);
    if (!parts.empty() && window_ != nullptr) {
      parts.push_back({"windows", window_->BytesFor(tokens).device});
    }
    return parts;
  }
  std::string Warning() const override { return whole_ != nullptr ? whole_->Warning() : ""; }
  std::vector<std::string> Notes() const override {
    std::vector<std::string> notes;
    if (whole_ != nullptr) notes = whole_->Notes();
    notes.push_back(
        fmt::format("{} of {} layers attend the last {} tokens, as the model was trained",
                    parts_.window.layout.layers, layout_.layers, layout_.window));
    return notes;
  }
  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    const auto create = [&](const std::unique_ptr<CachePlan>& plan) {
      return plan != nullptr ? plan->Create(device, budget) : nullptr;
    };
    return CreateWindowedCache(layout_, parts_, policy_, budget, create(whole_), create(window_));
  }

 private:
  template <class F>
  TierBytes Sum(const F& bytes_of) const {
    TierBytes sum;
    for (const CachePlan* plan : {whole_.get(), window_.get()}) {
      if (plan != nullptr) sum += bytes_of(*plan);
    }
    return sum;
  }

  const Layout layout_;
  const Parts parts_;
  const std::string policy_;
  std::unique_ptr<CachePlan> whole_, window_;
};

}  // namespace

std::unique_ptr<CachePlan> PlanWindowedCache(const Layout& layout, const KvOptions& options,
                                             DeviceType device) {
  const Parts parts(layout);
  KvOptions of_policy = options;
  if (of_policy.prefetch == "auto") of_policy.prefetch = "off";
  if (of_policy.prefetch != "off" && of_policy.prefetch != "0") {
    throw Unsupported(
        "KV options: prefetch = {}: queries are not predicted for a model with sliding windows; "
        "leave it at auto",
        options.prefetch);
  }
  // What the policy takes for layer 0, whose queries nothing predicts, is another one of the model.
  const std::vector<int64_t>& whole_layers = parts.whole.model_layers;
  if (!whole_layers.empty() && whole_layers.front() > 0) of_policy.resident_first_layer = false;
  KvOptions of_window;
  of_window.sink_tokens = 0;
  of_window.recent_tokens = layout.window;
  auto whole = parts.whole.layout.layers > 0
                   ? FindPolicy(options.policy).plan(parts.whole.layout, of_policy, nullptr, device)
                   : nullptr;
  if (whole != nullptr && whole->prefetches()) {
    throw Unsupported(
        "KV policy '{}' predicts queries, which models with sliding windows do not do; use another "
        "policy",
        options.policy);
  }
  auto window = parts.window.layout.layers > 0
                    ? PlanStreamingCache(parts.window.layout, of_window, device)
                    : nullptr;
  return std::make_unique<WindowedPlan>(layout, parts, options.policy, std::move(whole),
                                        std::move(window));
}

}  // namespace litecache::kv

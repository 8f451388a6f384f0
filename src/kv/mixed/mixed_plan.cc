// The plan of a cache for a model whose layers do not all attend the whole context.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "base/units.h"
#include "kv/api/policy_registry.h"
#include "kv/cache_plan.h"
#include "kv/mixed/mixed_cache.h"
#include "kv/recurrent/recurrent_cache.h"

namespace litecache::kv {
namespace {

using mixed::Parts;

class MixedPlan final : public CachePlan {
 public:
  MixedPlan(const Layout& layout, Parts parts, std::string policy, std::unique_ptr<CachePlan> whole,
            std::unique_ptr<CachePlan> window, std::unique_ptr<CachePlan> recurrent)
      : layout_(layout),
        parts_(std::move(parts)),
        policy_(std::move(policy)),
        whole_(std::move(whole)),
        window_(std::move(window)),
        recurrent_(std::move(recurrent)) {}

  const Layout& layout() const override { return layout_; }
  TierBytes BytesFor(int64_t tokens) const override {
    return Sum([&](const CachePlan& plan) { return plan.BytesFor(tokens); });
  }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return Sum([&](const CachePlan& plan) { return plan.ForkBytesFor(shared, tokens); });
  }
  uint64_t ScratchBytes(int64_t sequences, int64_t tokens, int threads) const override {
    uint64_t bytes = 0;
    for (const CachePlan* plan : {whole_.get(), window_.get(), recurrent_.get()}) {
      if (plan != nullptr) bytes += plan->ScratchBytes(sequences, tokens, threads);
    }
    return bytes;
  }
  const HeadPlan* heads() const override { return whole_ != nullptr ? whole_->heads() : nullptr; }
  std::string retriever() const override { return whole_ != nullptr ? whole_->retriever() : ""; }
  std::string transfer() const override { return whole_ != nullptr ? whole_->transfer() : ""; }
  bool DropResidentHead() override { return whole_ != nullptr && whole_->DropResidentHead(); }
  void PlanDrafts(int64_t tokens) override {
    for (CachePlan* plan : {whole_.get(), window_.get(), recurrent_.get()}) {
      if (plan != nullptr) plan->PlanDrafts(tokens);
    }
  }
  std::string DeviceHolds() const override {
    std::vector<std::string> parts;
    if (whole_ != nullptr && !whole_->DeviceHolds().empty()) parts.push_back(whole_->DeviceHolds());
    if (window_ != nullptr) {
      parts.push_back(fmt::format("the last {} tokens' rows of {} layers", layout_.window,
                                  parts_.window.layout.layers));
    }
    if (recurrent_ != nullptr) {
      parts.push_back(
          fmt::format("{} of states a sequence", FormatBytes(recurrent_->BytesFor(1).device)));
    }
    return Join(parts, "; ");
  }
  std::vector<NamedBytes> DeviceParts(int64_t tokens) const override {
    std::vector<NamedBytes> parts;
    if (whole_ != nullptr) parts = whole_->DeviceParts(tokens);
    if (parts.empty()) return parts;
    for (const auto& [plan, name] :
         {std::pair(window_.get(), "windows"), std::pair(recurrent_.get(), "states")}) {
      if (plan != nullptr) parts.push_back({name, plan->BytesFor(tokens).device});
    }
    return parts;
  }
  std::string Warning() const override { return whole_ != nullptr ? whole_->Warning() : ""; }
  std::vector<std::string> Notes() const override {
    std::vector<std::string> notes;
    if (whole_ != nullptr) notes = whole_->Notes();
    if (window_ != nullptr) {
      notes.push_back(
          fmt::format("{} of {} layers attend the last {} tokens, as the model was trained",
                      parts_.window.layout.layers, layout_.layers, layout_.window));
    }
    if (recurrent_ != nullptr) {
      notes.push_back(fmt::format("{} of {} layers keep a state instead of rows",
                                  parts_.recurrent.layout.layers, layout_.layers));
    }
    return notes;
  }
  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    const auto create = [&](const std::unique_ptr<CachePlan>& plan) {
      return plan != nullptr ? plan->Create(device, budget) : nullptr;
    };
    return CreateMixedCache(layout_, parts_, policy_, budget,
                            {create(whole_), create(window_), create(recurrent_)});
  }

 private:
  template <class F>
  TierBytes Sum(const F& bytes_of) const {
    TierBytes sum;
    for (const CachePlan* plan : {whole_.get(), window_.get(), recurrent_.get()}) {
      if (plan != nullptr) sum += bytes_of(*plan);
    }
    return sum;
  }

  const Layout layout_;
  const Parts parts_;
  const std::string policy_;
  std::unique_ptr<CachePlan> whole_, window_, recurrent_;
};

}  // namespace

std::unique_ptr<CachePlan> PlanMixedCache(const Layout& layout, const KvOptions& options,
                                          DeviceType device) {
  const Parts parts(layout);
  KvOptions of_policy = options;
  if (of_policy.prefetch == "auto") of_policy.prefetch = "off";
  if (of_policy.prefetch != "off" && of_policy.prefetch != "0") {
    throw Unsupported(
        "KV options: prefetch = {}: queries are not predicted for a model with sliding windows or "
        "states; leave it at auto",
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
        "KV policy '{}' predicts queries, which models with sliding windows or states do not do; "
        "use another policy",
        options.policy);
  }
  auto window = parts.window.layout.layers > 0
                    ? PlanStreamingCache(parts.window.layout, of_window, device)
                    : nullptr;
  auto recurrent = parts.recurrent.layout.layers > 0
                       ? PlanRecurrentCache(parts.recurrent.layout, device)
                       : nullptr;
  return std::make_unique<MixedPlan>(layout, parts, options.policy, std::move(whole),
                                     std::move(window), std::move(recurrent));
}

}  // namespace litecache::kv

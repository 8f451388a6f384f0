// The plan of policy litecache.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "kv/cache_plan.h"
#include "kv/heads/head_plan.h"
#include "kv/heads/prediction_sources.h"
#include "kv/heads/profile.h"
#include "kv/litecache/cache_cpu.h"
#include "kv/litecache/create_cache_cuda.h"
#include "kv/litecache/result_override.h"
#include "kv/litecache/scratch_plan_cuda.h"
#include "kv/litecache/shape.h"
#include "kv/retrieve/retriever.h"
#include "kv/step/attention_scratch_cuda.h"
#include "kv/step/prefill_options.h"
#include "ops/attention/attention.h"
#include "ops/common/available_cuda.h"
#include "ops/select/keys_select.h"
#include "ops/select/selection.h"

namespace litecache::kv {
namespace {

// The context at which S_topk of CLO eq. 12 is computed if the budget is a share and the profile
// gives no context.
constexpr int64_t kTypicalContext = 32768;

uint64_t HashOf(const std::vector<float>& values) {
  return Fnv1a({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

KvOptions Resolve(const KvOptions& options, const Layout& layout, const Profile* profile,
                  DeviceType device) {
  KvOptions resolved = options;
  // Over a GPU's link 8 bits are half the time, for a twenty-fifth of the divergence that selecting
  // rows costs (lab/notes/thresholds.md), where slots can keep them as they are.
  if (options.host_rows == "auto") {
    resolved.host_rows = "int8";
    if (device == DeviceType::kCpu || !KeepsCodes(layout, resolved)) resolved.host_rows = "full";
  }
  // With any model, profile or not: it finds 91% of the top rows where hash codes of the same bytes
  // find 47 to 65% (lab/notes/keys.md).
  if (options.retriever == "auto") resolved.retriever = "keys";
  if (options.hata_bits == 0) {
    const bool trained = profile != nullptr && !profile->hata.empty();
    resolved.hata_bits = trained ? profile->hata.rbegin()->first : 256;
  }
  if (options.hata_group == "auto") {
    resolved.hata_group = options.hata_norms ? "softmax" : "sum";
  }
  return resolved;
}

class LiteCachePlan final : public CachePlan, public OverridablePlan, public SparsePromptPlan {
 public:
  LiteCachePlan(const Layout& layout, const KvOptions& options,
                std::shared_ptr<const Profile> profile, DeviceType device)
      : SparsePromptPlan(SparsePrefillOf(options)),
        device_(device),
        options_(Resolve(options, layout, profile.get(), device)),
        profile_(std::move(profile)),
        heads_(MakeHeadPlan(layout, options_, profile_.get(),
                            PredictionSources(options, layout.layers, device), TopkBytes(layout))),
        shape_(layout, options_, heads_, MakeRetriever(layout)->metadata_tokens(), device),
        scores_per_token_(MakeRetriever(layout)->scores_per_token()),
        weight_bytes_(static_cast<uint64_t>(layout.layers) *
                      MakeRetriever(layout)->Weights(0).size_bytes()) {
    if (options_.budget.by_need &&
        (options_.retriever == "quest" ||
         (options_.retriever == "hata" && options_.hata_group != "softmax"))) {
      throw InvalidArgument(
          "KV options: budget = auto needs a retriever that estimates shares of the attention; use "
          "exact, keys, loki or hata with hata_group = softmax, or a budget such as 10%");
    }
    if (device == DeviceType::kCpu && options.transfer != "auto") {
      throw Unsupported(
          "KV options: transfer = {} brings rows to a GPU, and the model runs on the CPU; use "
          "transfer = auto, or a GPU",
          options.transfer);
    }
    if (device == DeviceType::kCuda && options.host_rows == "int4" && layout.head_dim % 4 != 0) {
      throw Unsupported(
          "KV options: host_rows = int4 on a GPU needs a head_dim that is a multiple of 4, not {}; "
          "use fp8, int8 or auto",
          layout.head_dim);
    }
  }

  const Layout& layout() const override { return shape_.layout; }
  TierBytes BytesFor(int64_t tokens) const override { return shape_.BytesFor(tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return shape_.ForkBytesFor(shared, tokens);
  }
  uint64_t ScratchBytes(int64_t sequences, int64_t tokens, int threads) const override {
    if constexpr (ops::cuda::kAvailable) {
      if (device_ == DeviceType::kCuda) {
        return CudaLiteScratchBytes(shape_, heads_, options_.verify_predictions, transfer(),
                                    sequences, tokens) +
               CudaPromptScratchBytes(sparse_prefill(), shape_.layout, tokens) + weight_bytes_;
      }
    }
    const Layout& layout = shape_.layout;
    // Prompts attend densely; decode sequences attend selected rows.
    const auto attention = [&](int64_t decoding) {
      return ops::AttentionScratchBytes(layout.kv_heads, shape_.group, layout.head_dim, decoding);
    };
    return attention(0) + attention(sequences) +
           PromptScratchBytes(sparse_prefill(), layout, tokens) +
           ops::SelectionScratchBytes(sequences * layout.kv_heads, tokens, scores_per_token_,
                                      threads);
  }
  const HeadPlan* heads() const override { return &heads_; }
  std::string DeviceHolds() const override {
    return "cached and resident rows, retriever metadata";
  }
  std::vector<NamedBytes> DeviceParts(int64_t tokens) const override {
    return shape_.DeviceParts(tokens);
  }
  std::string retriever() const override { return options_.retriever; }
  bool prefetches() const override { return LayersAhead(heads_.sources) > 0; }
  std::string transfer() const override {
    if (device_ == DeviceType::kCpu) return "";
    return options_.transfer == "auto" ? "gpu-pull" : options_.transfer;
  }

  std::string Identity() const override {
    const KvOptions& o = options_;
    std::string text = fmt::format(
        "litecache {}; store {}; retriever {} {} {} {} {}; budget {} sink {} recent {} carry {}; "
        "{} prefetch {}{}; whole {}; heads",
        Describe(shape_.layout), o.host_rows, o.retriever, o.hata_bits, o.hata_norms, o.hata_group,
        o.loki_rank, o.budget.ToString(), o.sink_tokens, o.recent_tokens, o.carry_tokens,
        o.aggregation, fmt::join(heads_.sources, ","), o.verify_predictions ? "" : " unverified",
        o.resident_whole);
    for (const HeadSettings& head : heads_.heads) {
      text += fmt::format(" {}{}{}", head.resident ? "r" : "", head.dense ? "d" : "", head.tau);
    }
    text += fmt::format("{}; importance {:016x}", IdentityOf(sparse_prefill()),
                        HashOf(heads_.importance));
    if (o.retriever.starts_with("keys")) {
      text += fmt::format("; rotation {:016x}", HashOf(ops::KeysRotation(layout().head_dim)));
    }
    if (profile_ == nullptr) return text;
    if (o.retriever == "loki") text += fmt::format("; bases {:016x}", HashOf(profile_->loki));
    const auto weights = profile_->hata.find(o.hata_bits);
    if (o.retriever == "hata" && weights != profile_->hata.end()) {
      text += fmt::format("; projections {:016x}", HashOf(weights->second));
    }
    return text;
  }

  bool DropResidentHead() override {
    if (!OffloadEasiest(options_.dense_layers, &heads_)) return false;
    shape_ = Shape(shape_.layout, options_, heads_, shape_.metadata_tokens, device_);
    return true;
  }

  const ops::SlotWindows<int64_t>& windows() const override { return shape_; }
  ops::Aggregation aggregation() const override { return AggregationOf(options_); }
  std::optional<PredictionCheck> prediction_check() const override {
    if (!options_.verify_predictions) return std::nullopt;
    return PredictionCheck{static_cast<float>(options_.prediction_eta),
                           static_cast<float>(options_.prediction_margin)};
  }
  using SparsePromptPlan::SetOverride;
  void SetOverride(std::shared_ptr<const ResultOverride> results) override {
    results_ = std::move(results);
  }

  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    LC_CHECK(device.type() == device_, "the plan was made for another device");
    if constexpr (ops::cuda::kAvailable) {
      if (device_ == DeviceType::kCuda) {
        return CreateCudaLiteCache(device, shape_, heads_, options_, MakeRetriever(shape_.layout),
                                   budget, results_.get(), sparse_prefill());
      }
    }
    return std::make_unique<LiteCache>(device, shape_, heads_, options_,
                                       MakeRetriever(shape_.layout), budget, results_,
                                       sparse_prefill());
  }

 private:
  // S_topk of CLO eq. 12, in bytes.
  uint64_t TopkBytes(const Layout& layout) const {
    const int64_t context = profile_ != nullptr && profile_->curve_context > 0
                                ? profile_->curve_context
                                : kTypicalContext;
    return static_cast<uint64_t>(options_.budget.RowsFor(context)) *
           StoreFormat(layout, options_, device_).row_bytes();
  }
  std::unique_ptr<Retriever> MakeRetriever(const Layout& layout) const {
    return CreateRetriever(layout, options_, profile_.get(), PageLayout(layout).page_bytes);
  }

  DeviceType device_;
  KvOptions options_;
  std::shared_ptr<const Profile> profile_;
  HeadPlan heads_;
  Shape shape_;
  double scores_per_token_;
  uint64_t weight_bytes_;                          // of the retriever
  std::shared_ptr<const ResultOverride> results_;  // null: no override
};

}  // namespace

std::unique_ptr<CachePlan> PlanLiteCache(const Layout& layout, const KvOptions& options,
                                         std::shared_ptr<const Profile> profile,
                                         DeviceType device) {
  CheckLayout(layout);
  return std::make_unique<LiteCachePlan>(layout, options, std::move(profile), device);
}

}  // namespace litecache::kv

// The plan of policy `kvpr`: what a token costs, and whether recomputing it can gain time.

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/logging.h"
#include "base/units.h"
#include "kv/cache_plan.h"
#include "kv/kvpr/rates.h"
#include "kv/kvpr/scheduler.h"
#include "kv/offload/offload_cache.h"
#include "kv/step/attention_scratch_cuda.h"
#include "ops/attention/attention.h"
#include "ops/common/available_cuda.h"
#include "ops/linear/linear_scratch_cuda.h"

namespace litecache::kv {
namespace {

using offload::Shape;

kvpr::TokenWork WorkOf(const Layout& layout, const KvOptions& options) {
  const auto hidden = static_cast<double>(layout.hidden);
  const int64_t width = layout.kv_heads * layout.head_dim;
  return {.input_bytes = hidden * static_cast<double>(SizeOf(layout.dtype)),
          .row_bytes = static_cast<double>(static_cast<size_t>(layout.kv_heads) *
                                           offload::StoreFormat(layout, options).row_bytes()),
          .flops = 4 * hidden * static_cast<double>(width)};
}

class KvprPlan final : public CachePlan {
 public:
  KvprPlan(const Layout& layout, const KvOptions& options, DeviceType device)
      : options_(options),
        work_(WorkOf(layout, options)),
        recomputes_(options.kvpr.split > 0 ||
                    (options.kvpr.split < 0 && layout.hidden > 0 && !NeverRecomputes(work_))),
        shape_(layout, options, /*device_share=*/0, /*keeps_inputs=*/recomputes_, device) {}

  const Layout& layout() const override { return shape_.layout; }
  TierBytes BytesFor(int64_t tokens) const override {
    return shape_.BytesFor(tokens, LargestSplit(tokens));
  }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return shape_.ForkBytesFor(shared, tokens, LargestSplit(tokens));
  }
  uint64_t ScratchBytes(int64_t sequences, int64_t tokens, int) const override {
    const Layout& layout = shape_.layout;
    const uint64_t recompute = recomputes_
                                   ? offload::RecomputeScratchBytes(
                                         layout, sequences * LargestSplit(tokens), shape_.on_gpu)
                                   : 0;
    if constexpr (ops::cuda::kAvailable) {
      if (shape_.on_gpu) {
        // Recomputation runs its products on separate streams.
        return CudaAttentionScratchBytes(layout, sequences) + recompute +
               (recomputes_ ? offload::kRecomputeLanes * ops::cuda::LinearScratchBytes() : 0);
      }
    }
    // Sequences run one after another.
    return ops::AttentionScratchBytes(layout.kv_heads, layout.q_heads / layout.kv_heads,
                                      layout.head_dim, 1) +
           recompute;
  }
  std::string DeviceHolds() const override {
    return fmt::format("{} buffers of a layer's rows{}{}", shape_.buffers(),
                       recomputes_ ? " and inputs" : "",
                       shape_.FirstInputTable().lists > 0 ? ", and layer 0's inputs" : "");
  }
  std::string Warning() const override {
    if (options_.kvpr.split >= 0 || recomputes_) return "";
    constexpr const char* kText = "no rows are recomputed (l = 0): {}; all rows are transferred";
    if (shape_.layout.hidden == 0) {
      return fmt::format(kText, "the size of the layers' inputs is not known");
    }
    return fmt::format(kText, Sizes() + ", so inputs gain nothing");
  }
  std::vector<std::string> Notes() const override {
    if (options_.kvpr.split > 0) {
      return {fmt::format("the first {} tokens' rows are recomputed; {}", options_.kvpr.split,
                          Sizes())};
    }
    if (options_.kvpr.split == 0) return {"no rows are recomputed (l = 0 was requested)"};
    if (!recomputes_) return {};  // Warning() reports it
    return {fmt::format("the first tokens' rows are recomputed, {}; {}",
                        options_.kvpr.chunked ? "while inputs and rows travel (chunked)"
                                              : "while rows travel (eq. 11)",
                        Sizes())};
  }
  std::string Identity() const override {
    return fmt::format("kvpr {}; store {}; inputs {}", Describe(shape_.layout),
                       Name(shape_.store_format.encoding), recomputes_ ? shape_.layout.hidden : 0);
  }

  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    std::optional<offload::Recompute> recompute;
    if (recomputes_) {
      recompute = offload::Recompute{
          .split = MakeSplit(device),
          .place = MakePlace(),
          .largest_split =
              [split = options_.kvpr.split](int64_t tokens) { return Largest(split, tokens); },
          .chunked = options_.kvpr.chunked};
    }
    return offload::CreateOffloadCache(device, options_.policy, shape_, std::move(recompute),
                                       budget);
  }

 private:
  std::string Sizes() const {
    return fmt::format("a layer's input takes {} a token on the link, its keys and values {}",
                       FormatBytes(static_cast<uint64_t>(work_.input_bytes)),
                       FormatBytes(static_cast<uint64_t>(work_.row_bytes)));
  }
  static int64_t Largest(int64_t split, int64_t tokens) {
    return split < 0 ? tokens : std::min(split, tokens);
  }
  int64_t LargestSplit(int64_t tokens) const {
    return recomputes_ ? Largest(options_.kvpr.split, tokens) : 0;
  }

  std::function<offload::Recomputed(int64_t, int64_t)> MakePlace() const {
    if (options_.kvpr.split >= 0 || !shape_.on_gpu) {
      return [](int64_t split, int64_t) { return offload::Recomputed{.first = split}; };
    }
    return
        [page = shape_.store_page_tokens, expands = shape_.expands()](int64_t split, int64_t past) {
          return kvpr::PlaceSplit(split, past, page, /*first_only=*/expands);
        };
  }

  std::function<int64_t(int64_t, int64_t)> MakeSplit(Device& device) const {
    if (options_.kvpr.split >= 0) {
      return [split = options_.kvpr.split](int64_t past, int64_t) { return std::min(split, past); };
    }
    const kvpr::Rates rates = kvpr::MeasureRates(device, shape_);
    kvpr::TokenCosts costs =
        kvpr::CostsOf(work_, rates.link_bytes_per_second, rates.flops_per_second);
    // Without `chunked`, eq. 11 stays as published.
    if (options_.kvpr.chunked && rates.recompute > 0) costs.recompute = rates.recompute;
    const auto best = [costs, rates, chunked = options_.kvpr.chunked](int64_t past,
                                                                      int64_t sequences) {
      kvpr::TokenCosts own = costs;
      own.other = rates.products / static_cast<double>(sequences) +
                  rates.attention * static_cast<double>(past);
      return kvpr::BestSplit(own, chunked, past);
    };
    constexpr int64_t kExample = 1000, kSequences = 64;
    LogInfo(
        "KV cache: link {}/s, products {:.1f} GFLOP/s; per layer: {:.3g} ns per recomputed token, "
        "{:.3g} ns per attended token, {:.3g} us of products; recomputing {} of {} tokens of {} "
        "sequences",
        FormatBytes(static_cast<uint64_t>(rates.link_bytes_per_second)),
        rates.flops_per_second / 1e9, costs.recompute * 1e9, rates.attention * 1e9,
        rates.products * 1e6, best(kExample, kSequences), kExample, kSequences);
    return best;
  }

  KvOptions options_;
  kvpr::TokenWork work_;
  bool recomputes_;
  Shape shape_;
};

}  // namespace

std::unique_ptr<CachePlan> PlanKvprCache(const Layout& layout, const KvOptions& options,
                                         DeviceType device) {
  CheckLayout(layout);
  return std::make_unique<KvprPlan>(layout, options, device);
}

}  // namespace litecache::kv

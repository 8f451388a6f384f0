#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "kv/tiers.h"

namespace litecache::engine {

void CheckWeightsFit(const std::string& model, uint64_t weights, uint64_t total) {
  if (weights < total) return;
  throw CapacityError(
      "the weights of {} take {}, but the memory budget is {}: raise the budget, or use a smaller "
      "model",
      model, FormatBytes(weights), FormatBytes(total));
}

namespace {

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// The most tokens a sequence can have when its cost fits.
template <class Fits>
int64_t LargestContext(const kv::CachePlan& cache, int64_t limit, const Fits& fits) {
  int64_t low = 0, high = limit;  // the cost grows with the length
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(cache.BytesFor(middle))) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Splits what the tiers have for KV between them as sequences of `context` tokens need it, at most
// `most` of them.
kv::TierBytes SplitKv(const kv::TierBytes& caps, uint64_t left, const kv::TierBytes& sequence,
                      uint64_t most) {
  const kv::TierBytes useful = most * sequence;
  kv::TierBytes kv{std::min(caps.device, useful.device), std::min(caps.host, useful.host)};
  if (kv.total() > left) {
    // Too much together: in proportion to a sequence's need, but a tier's cap leaves its rest to
    // the other.
    const double share =
        static_cast<double>(sequence.device) / static_cast<double>(sequence.total());
    const uint64_t device = std::max(static_cast<uint64_t>(share * static_cast<double>(left)),
                                     std::max(sequence.device, Minus(left, kv.host)));
    kv.device = std::min(kv.device, device);
    kv.host = std::min(kv.host, Minus(left, kv.device));
  }
  return kv;
}

}  // namespace

MemoryPlan MakeMemoryPlan(const MemoryRequest& request) {
  if (request.wanted_context < 0 || request.wanted_context > request.model_context) {
    throw InvalidArgument("max_context = {} is not between 1 and the {} tokens {} can reach",
                          request.wanted_context, request.model_context, request.model);
  }
  CheckWeightsFit(request.model, request.weights, request.total);
  const int64_t context =
      request.wanted_context > 0 ? request.wanted_context : request.model_context;
  kv::CachePlan& cache = *request.cache;
  const uint64_t fixed = request.weights + request.buffers;
  const uint64_t left = Minus(request.total, fixed);
  const uint64_t device =
      request.device > 0 ? std::min(request.device, request.total) : request.total;
  const uint64_t host = request.host > 0 ? request.host : left;
  const kv::TierBytes caps{std::min(Minus(device, fixed), left), std::min(host, left)};
  const auto fits = [&](const kv::TierBytes& cost) {
    return cost.FitsIn(caps) && cost.total() <= left;
  };
  const int64_t least = request.wanted_context > 0 ? request.wanted_context : 1;
  int64_t largest = LargestContext(cache, context, fits);
  while (largest < least && cache.DropResidentHead()) {
    largest = LargestContext(cache, context, fits);
  }

  MemoryPlan plan;
  plan.total = request.total;
  plan.weights = request.weights;
  plan.weights_mapped = request.weights_mapped;
  plan.buffers = request.buffers;
  plan.kv_policy = request.policy;
  plan.kv_device_holds = cache.DeviceHolds();
  plan.kv_per_token = cache.layout().token_bytes();
  plan.context_limit = context;
  if (largest < least) {
    const kv::TierBytes needed = cache.BytesFor(least);
    throw CapacityError(
        "{} does not fit: of the memory budget of {}{} the weights take {} and the buffers {}, "
        "which leaves {} for KV, {} tokens; {} {} needed: raise the budget{}",
        request.model, FormatBytes(plan.total),
        request.device > 0 ? fmt::format(" ({} on the device)", FormatBytes(device)) : "",
        FormatBytes(plan.weights), FormatBytes(plan.buffers),
        kv::FormatTiers({caps.device, needed.host > 0 ? caps.host : 0}), largest,
        kv::FormatTiers(needed),
        request.wanted_context > 0 ? fmt::format("for the context of {} are", context)
                                   : std::string("at least are"),
        request.wanted_context > 0 ? " or lower the context" : "");
  }
  plan.kv = SplitKv(caps, left, cache.BytesFor(largest), static_cast<uint64_t>(request.max_batch));
  plan.largest_context = LargestContext(
      cache, context, [&](const kv::TierBytes& cost) { return cost.FitsIn(plan.kv); });
  plan.kv_largest = cache.BytesFor(plan.largest_context);
  return plan;
}

}  // namespace litecache::engine

namespace litecache {

std::string MemoryPlan::ToString() const {
  std::string text;
  const auto line = [&text](std::string_view name, uint64_t bytes, const std::string& remark) {
    text += fmt::format("  {:<10}{:>10}{}{}\n", name, FormatBytes(bytes),
                        remark.empty() ? "" : "  ", remark);
  };
  text += fmt::format("Memory budget {}\n", FormatBytes(total));
  line("weights", weights,
       weights_mapped ? "mapped from the files: the system's page cache holds them" : "");
  line("buffers", buffers, "activations, logits and scratch of the largest step");
  if (kv.host == 0) {
    line("KV cache", kv.device, kv_device_holds);
  } else {
    line("KV device", kv.device,
         fmt::format("{} for {} tokens: {}", FormatBytes(kv_largest.device), largest_context,
                     kv_device_holds));
    line("KV host", kv.host,
         fmt::format("{} for {} tokens: the host store", FormatBytes(kv_largest.host),
                     largest_context));
  }
  line("unused", total - weights - buffers - kv.total(), "");
  text += fmt::format("Largest context {} tokens ({})\n", largest_context,
                      largest_context < context_limit ? "what the memory allows"
                                                      : "the limit of the model or of the options");
  return text;
}

}  // namespace litecache

#include "engine/memory_plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/logging.h"
#include "base/units.h"
#include "kv/tiers.h"

namespace litecache::engine {

void CheckWeightsFit(const std::string& model, uint64_t weights, uint64_t total, bool of_gpu) {
  if (weights < total) return;
  throw CapacityError(
      "the weights of {} take {}, but the {} is {}: raise {}, or use a smaller model", model,
      FormatBytes(weights), of_gpu ? "budget of GPU memory" : "memory budget", FormatBytes(total),
      of_gpu ? "--device-memory, leave layers (--weights-on-device 50%) or a mixture's experts "
               "(--experts-on-device 50%) on the host"
             : "--memory");
}

uint64_t HostCap(uint64_t asked, uint64_t left, uint64_t memory) {
  if (asked <= left) return asked;
  LogWarning("host_memory: {} requested, but only {} available {}: the host store will be smaller",
             FormatBytes(asked), FormatBytes(left),
             memory > 0 ? fmt::format("of memory = {} (raise it)", FormatBytes(memory))
                        : "of what this machine has free");
  return left;
}

namespace {

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// The most tokens that a sequence can have so that its cost fits.
template <class Cost, class Fits>
int64_t LargestContext(const Cost& cost, int64_t limit, const Fits& fits) {
  int64_t low = 0, high = limit;  // the cost grows with the length
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(cost(middle))) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Splits the memory left for KV between the tiers as sequences of `context` tokens need it, for at
// most `most` of them.
kv::TierBytes SplitKv(const kv::TierBytes& caps, uint64_t left, const kv::TierBytes& sequence,
                      uint64_t most) {
  const kv::TierBytes useful = most * sequence;
  kv::TierBytes kv{std::min(caps.device, useful.device), std::min(caps.host, useful.host)};
  if (kv.total() > left) {
    // Together they need too much: split in proportion to a sequence's need; what a tier's limit
    // leaves unused goes to the other tier.
    const double share =
        static_cast<double>(sequence.device) / static_cast<double>(sequence.total());
    const uint64_t device = std::max(static_cast<uint64_t>(share * static_cast<double>(left)),
                                     std::max(sequence.device, Minus(left, kv.host)));
    kv.device = std::min(kv.device, device);
    kv.host = std::min(kv.host, Minus(left, kv.device));
  }
  return kv;
}

// Reports why a context of `least` tokens does not fit, naming the memories in use.
[[noreturn]] void Refuse(const MemoryRequest& request, const MemoryPlan& plan,
                         const kv::TierBytes& caps, const kv::TierBytes& needed, int64_t largest) {
  const std::string what = request.wanted_context > 0
                               ? fmt::format("the context of {} needs", request.wanted_context)
                               : std::string("a sequence needs at least");
  const char* hint = request.wanted_context > 0 ? " or lower the context" : "";
  const bool device_short = needed.device > caps.device, host_short = needed.host > caps.host;
  if (!request.two_memories) {
    throw CapacityError(
        "{} does not fit: of the memory budget of {}{} the weights take {}{} and the buffers {}, "
        "which leaves {} for KV, {} tokens; {} {}: raise {}{}",
        request.model, FormatBytes(plan.total),
        request.device > 0 ? fmt::format(" ({} on the device)",
                                         FormatBytes(std::min(request.device, request.total)))
                           : "",
        FormatBytes(plan.weights),
        request.draft_cache != nullptr
            ? fmt::format(", the draft model {}", FormatBytes(plan.draft.total()))
            : "",
        FormatBytes(plan.buffers), kv::FormatTiers({caps.device, needed.host > 0 ? caps.host : 0}),
        largest, what, kv::FormatTiers(needed),
        device_short && request.device > 0 ? "--device-memory"
        : host_short && request.host > 0   ? "--host-memory"
                                           : "--memory",
        hint);
  }
  const char* flags = device_short && host_short ? "--device-memory and --memory"
                      : device_short             ? "--device-memory"
                                                 : "--memory (or --host-memory)";
  throw CapacityError(
      "{} does not fit: of {} of GPU memory the weights take {} and the buffers {}, which leaves "
      "{} "
      "for KV; {} of host memory are for the host store; {} tokens fit; {} {} of GPU memory and {} "
      "of host memory: raise {}{}",
      request.model, FormatBytes(plan.device_total), FormatBytes(plan.weights),
      FormatBytes(plan.buffers), FormatBytes(caps.device), FormatBytes(caps.host), largest, what,
      FormatBytes(needed.device), FormatBytes(needed.host), flags, hint);
}

}  // namespace

MemoryPlan MakeMemoryPlan(const MemoryRequest& request) {
  if (request.wanted_context < 0 || request.wanted_context > request.model_context) {
    throw InvalidArgument("max_context = {} is not between 1 and {} tokens, the context of {}",
                          request.wanted_context, request.model_context, request.model);
  }
  CheckWeightsFit(request.model, request.weights + request.draft_weights,
                  request.two_memories ? request.device : request.total, request.two_memories);
  const int64_t context =
      request.wanted_context > 0 ? request.wanted_context : request.model_context;
  kv::CachePlan& cache = *request.cache;
  const auto draft_bytes = [&](int64_t tokens) -> uint64_t {
    if (request.draft_cache == nullptr) return 0;
    return request.draft_cache->BytesFor(std::min(tokens, request.draft_context)).total();
  };
  const auto own_cost = [&](int64_t tokens) { return cache.BytesFor(tokens); };
  const auto cost = [&](int64_t tokens) {
    return own_cost(tokens) + kv::TierBytes{.device = draft_bytes(tokens)};
  };
  const uint64_t fixed =
      request.weights + request.buffers + request.draft_weights + request.draft_buffers;
  const uint64_t left = Minus(request.total, fixed);
  const uint64_t device =
      request.device > 0 ? std::min(request.device, request.total) : request.total;
  const uint64_t host = request.host > 0 ? request.host : left;
  const kv::TierBytes caps{std::min(Minus(device, fixed), left),
                           request.two_memories ? host : std::min(host, left)};
  const auto fits = [&](const kv::TierBytes& bytes) {
    return bytes.FitsIn(caps) && (request.two_memories || bytes.total() <= left);
  };
  const int64_t least = request.wanted_context > 0 ? request.wanted_context : 1;
  int64_t largest = LargestContext(cost, context, fits);
  // An offloaded head takes less device memory and more host memory.
  while (largest < least && cost(least).device > caps.device && cache.DropResidentHead()) {
    largest = LargestContext(cost, context, fits);
  }

  MemoryPlan plan;
  plan.total = request.total;
  if (request.two_memories) {
    plan.device_total = request.device;
    plan.host_total = request.host + request.host_weights;
  }
  plan.weights = request.weights;
  plan.weights_mapped = request.weights_mapped;
  plan.host_weights = request.host_weights;
  plan.offloaded_layers = request.offloaded_layers;
  plan.buffers = request.buffers;
  plan.draft.weights = request.draft_weights;
  plan.draft.buffers = request.draft_buffers;
  plan.kv_policy = request.policy;
  plan.kv_device_holds = cache.DeviceHolds();
  plan.kv_per_token = cache.layout().token_bytes();
  plan.context_limit = context;
  plan.max_batch = request.max_batch;
  if (largest < least) Refuse(request, plan, caps, cost(least), largest);
  plan.kv = SplitKv(caps, request.two_memories ? caps.total() : left, cost(largest),
                    static_cast<uint64_t>(request.max_batch));
  if (const uint64_t drafts = draft_bytes(largest); drafts > 0) {
    const double share = static_cast<double>(drafts) / static_cast<double>(cost(largest).device);
    plan.draft.kv.device =
        std::max(drafts, static_cast<uint64_t>(share * static_cast<double>(plan.kv.device)));
    plan.kv.device -= plan.draft.kv.device;
  }
  plan.largest_context = LargestContext(
      own_cost, context, [&](const kv::TierBytes& bytes) { return bytes.FitsIn(plan.kv); });
  plan.kv_largest = cache.BytesFor(plan.largest_context);
  plan.kv_parts = cache.DeviceParts(plan.largest_context);
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
  const bool two = device_total > 0;
  text += fmt::format("{} {}\n", two ? "GPU memory" : "Memory budget",
                      FormatBytes(two ? device_total : total));
  line("weights", weights,
       weights_mapped ? "mapped from the files: the system's page cache holds them"
       : offloaded_layers > 0
           ? fmt::format("including buffers that {} offloaded layers share", offloaded_layers)
       : host_weights > 0 ? "including copies of the experts used last"
                          : "");
  line("buffers", buffers,
       prefill_chunk > 0
           ? fmt::format("activations, logits and scratch of a step of {} prompt tokens",
                         prefill_chunk)
           : "activations, logits and scratch of the largest step");
  if (draft.total() > 0) {
    line("draft", draft.total(),
         fmt::format("the draft model: weights {}, buffers {}, KV cache {}",
                     FormatBytes(draft.weights), FormatBytes(draft.buffers),
                     FormatBytes(draft.kv.total())));
  }
  if (kv.host == 0) {
    line("KV cache", kv.device, kv_device_holds);
  } else {
    std::string parts;
    for (const NamedBytes& part : kv_parts) {
      parts +=
          fmt::format("{}{} {}", parts.empty() ? "" : ", ", part.name, FormatBytes(part.bytes));
    }
    line("KV device", kv.device,
         fmt::format("{} for {} tokens: {}", FormatBytes(kv_largest.device), largest_context,
                     parts.empty() ? kv_device_holds : parts));
  }
  const auto unused = [&](uint64_t budget, uint64_t taken) {
    line("unused", budget > taken ? budget - taken : 0, "");
  };
  const auto store = [&] {
    line("KV host", kv.host,
         fmt::format("{} for {} tokens: the host store", FormatBytes(kv_largest.host),
                     largest_context));
  };
  if (two) {
    unused(device_total, weights + buffers + kv.device);
    text += fmt::format("Host memory {}\n", FormatBytes(host_total));
    if (host_weights > 0) {
      line("weights", host_weights,
           offloaded_layers > 0
               ? fmt::format("of {} offloaded layers: copied in every step", offloaded_layers)
               : "of experts: the GPU reads those that it has no copies of");
    }
    if (kv.host > 0) store();
    unused(host_total, host_weights + kv.host);
  } else {
    if (kv.host > 0) store();
    unused(total, weights + buffers + draft.total() + kv.total());
  }
  text += fmt::format("Largest context {} tokens ({}); up to {} {} together\n", largest_context,
                      largest_context < context_limit ? "what the memory allows"
                                                      : "the limit of the model or of the options",
                      max_batch, max_batch == 1 ? "sequence" : "sequences");
  return text;
}

}  // namespace litecache

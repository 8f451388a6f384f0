#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "kv/layout.h"

namespace litecache::engine {

void CheckWeightsFit(const std::string& model, uint64_t weights, uint64_t total) {
  if (weights < total) return;
  throw CapacityError(
      "the weights of {} take {}, but the memory budget is {}: raise the budget, or use a smaller "
      "model",
      model, FormatBytes(weights), FormatBytes(total));
}

MemoryPlan MakeMemoryPlan(const MemoryRequest& request) {
  if (request.wanted_context < 0 || request.wanted_context > request.model_context) {
    throw InvalidArgument("max_context = {} is not between 1 and the {} tokens {} can reach",
                          request.wanted_context, request.model_context, request.model);
  }
  CheckWeightsFit(request.model, request.weights, request.total);
  const int64_t context =
      request.wanted_context > 0 ? request.wanted_context : request.model_context;
  const kv::PageLayout pages(request.layout);
  const uint64_t fixed = request.weights + request.buffers;
  const uint64_t left = request.total > fixed ? request.total - fixed : 0;

  MemoryPlan plan;
  plan.total = request.total;
  plan.weights = request.weights;
  plan.weights_mapped = request.weights_mapped;
  plan.buffers = request.buffers;
  plan.kv_per_token = request.layout.token_bytes();
  const uint64_t useful = pages.BytesFor(context) * static_cast<uint64_t>(request.max_batch);
  plan.kv = std::min(left / pages.block_bytes() * pages.block_bytes(), useful);
  plan.largest_context = std::min(pages.TokensIn(plan.kv), context);
  plan.context_limit = context;
  const uint64_t least =
      request.wanted_context > 0 ? pages.BytesFor(request.wanted_context) : pages.block_bytes();
  if (plan.kv < least) {
    throw CapacityError(
        "{} does not fit: of the memory budget of {} the weights take {} and the buffers {}, which "
        "leaves {} for KV, {} tokens at {} a token; {} {} needed: raise the budget{}",
        request.model, FormatBytes(plan.total), FormatBytes(plan.weights),
        FormatBytes(plan.buffers), FormatBytes(left), pages.TokensIn(left),
        FormatBytes(plan.kv_per_token), FormatBytes(least),
        request.wanted_context > 0 ? fmt::format("for the context of {} are", context)
                                   : std::string("at least are"),
        request.wanted_context > 0 ? " or lower the context" : "");
  }
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
  line("buffers", buffers, "activations and logits of the largest step");
  line("KV cache", kv, fmt::format("{} a token; taken page by page", FormatBytes(kv_per_token)));
  line("unused", total - weights - buffers - kv, "");
  text += fmt::format("Largest context {} tokens ({})\n", largest_context,
                      largest_context < context_limit ? "what the memory allows"
                                                      : "the limit of the model or of the options");
  return text;
}

}  // namespace litecache

#include "model/expert_block.h"

#include <fmt/core.h>

#include <initializer_list>

#include "ops/dense/activation.h"
#include "ops/linear/linear.h"

namespace litecache::model {

ExpertBlock TakeExperts(WeightStore& weights, const ExpertConfig& config, int64_t hidden,
                        int64_t layer, const std::string& name) {
  const LayerPlace place{layer, LayerPart::kRest};
  ExpertBlock block;
  const std::string router = fmt::format("{}{}.{}.", name, config.module, config.router);
  block.router = weights.LayerMatrix(place, router + "weight", config.count, hidden);
  const std::string* const modules[] = {&config.gate, &config.up, &config.down};
  const ExpertRequest request = {.place = place,
                                 .count = config.count,
                                 .hidden = hidden,
                                 .intermediate = config.intermediate,
                                 .name = [&](int part, int64_t expert) {
                                   return fmt::format("{}{}.experts.{}.{}.weight", name,
                                                      config.module, expert, *modules[part]);
                                 }};
  block.experts = weights.Experts(request);
  if (config.shared > 0) {
    const std::string shared = fmt::format("{}{}.shared_expert", name, config.module);
    const auto take = [&](const char* part, int64_t rows, int64_t cols) {
      return weights.LayerMatrix(place, fmt::format("{}{}.weight", shared, part), rows, cols);
    };
    block.shared = {.share = take("_gate", 1, hidden),
                    .gate = take(".gate_proj", config.shared, hidden),
                    .up = take(".up_proj", config.shared, hidden),
                    .down = take(".down_proj", hidden, config.shared)};
  }
  if (!config.bias) return block;
  block.router_bias = weights.Bias(router + "bias", config.count);
  for (int part = 0; part < ops::kExpertParts; ++part) {
    ops::PartOf(block.experts, part).bias =
        weights.Bias(fmt::format("{}{}.experts.*.{}.bias", name, config.module, *modules[part]),
                     config.count * request.Rows(part));
  }
  return block;
}

ExpertActivations ExpertActivations::Rows(int64_t begin, int64_t count) const {
  ExpertActivations a = *this;
  for (MatrixView* view :
       {&a.logits, &a.experts, &a.weights, &a.share, &a.shared_gate, &a.shared_up}) {
    if (view->rows > 0) *view = view->Rows(begin, count);
  }
  return a;
}

ExpertActivations PlaceExperts(Arena& arena, const ExpertConfig& config, DType product,
                               int64_t rows, uint64_t scratch_bytes) {
  ExpertActivations a;
  a.logits = arena.Take(rows, config.count);
  a.experts = arena.Take(rows, config.active);
  a.weights = arena.Take(rows, config.active);
  a.scratch = arena.Take(1, static_cast<int64_t>((scratch_bytes + 3) / sizeof(float)));
  if (config.shared > 0) {
    a.share = arena.Take(rows, 1);
    a.shared_gate = arena.Take(rows, config.shared, product);
    a.shared_up = arena.Take(rows, config.shared, product);
  }
  return a;
}

void RunExperts(Stream& stream, const ExpertConfig& config, const ExpertBlock& block,
                const MatrixView& h, const ops::GateFunction& function, const ExpertActivations& a,
                const MatrixView& x) {
  const ops::Routing routing = {.experts = static_cast<int32_t*>(a.experts.data),
                                .weights = a.weights.Row<float>(0),
                                .rows = h.rows,
                                .active = config.active};
  const ops::LinearPart router = {.weight = block.router, .bias = block.router_bias, .y = a.logits};
  const SharedExpert& shared = block.shared;
  if (config.shared > 0) {
    const std::initializer_list<ops::LinearPart> parts = {router,
                                                          {.weight = shared.share, .y = a.share}};
    ops::Linear(stream, h, parts);
  } else {
    ops::Linear(stream, h, {&router, 1});
  }
  ops::Route(stream, a.logits, config.normalized, routing);
  ops::Experts(stream, h, routing, block.experts, function, a.scratch.data, x);
  if (config.shared == 0) return;
  ops::GatedLinear(stream, h, {.weight = shared.gate, .y = a.shared_gate},
                   {.weight = shared.up, .y = a.shared_up}, function);
  ops::SigmoidMul(stream, a.share, a.shared_gate);
  ops::Linear(stream, a.shared_gate, shared.down, nullptr, x, ops::Epilogue::kAdd);
}

}  // namespace litecache::model

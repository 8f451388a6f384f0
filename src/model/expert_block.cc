#include "model/expert_block.h"

#include <fmt/core.h>

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
  return {logits.Rows(begin, count), experts.Rows(begin, count), weights.Rows(begin, count),
          scratch};
}

ExpertActivations PlaceExperts(Arena& arena, const ExpertConfig& config, int64_t rows,
                               uint64_t scratch_bytes) {
  ExpertActivations a;
  a.logits = arena.Take(rows, config.count);
  a.experts = arena.Take(rows, config.active);
  a.weights = arena.Take(rows, config.active);
  a.scratch = arena.Take(1, static_cast<int64_t>((scratch_bytes + 3) / sizeof(float)));
  return a;
}

void RunExperts(Stream& stream, const ExpertConfig& config, const ExpertBlock& block,
                const MatrixView& h, const ops::GateFunction& function, const ExpertActivations& a,
                const MatrixView& x) {
  const ops::Routing routing = {.experts = static_cast<int32_t*>(a.experts.data),
                                .weights = a.weights.Row<float>(0),
                                .rows = h.rows,
                                .active = config.active};
  ops::Linear(stream, h, block.router, block.router_bias, a.logits);
  ops::Route(stream, a.logits, config.normalized, routing);
  ops::Experts(stream, h, routing, block.experts, function, a.scratch.data, x);
}

}  // namespace litecache::model

#include "model/expert_block.h"

#include <fmt/core.h>

#include "ops/linear/linear.h"

namespace litecache::model {

ExpertBlock TakeExperts(WeightStore& weights, const ExpertConfig& config, int64_t hidden,
                        int64_t layer, const std::string& name) {
  const LayerPlace place{layer, LayerPart::kRest};
  ExpertBlock block;
  block.router = weights.LayerMatrix(place, fmt::format("{}{}.gate.weight", name, config.module),
                                     config.count, hidden);
  block.experts = weights.Experts(
      {.place = place,
       .count = config.count,
       .hidden = hidden,
       .intermediate = config.intermediate,
       .name = [&](int part, int64_t expert) {
         const std::string* const modules[] = {&config.gate, &config.up, &config.down};
         return fmt::format("{}{}.experts.{}.{}.weight", name, config.module, expert,
                            *modules[part]);
       }});
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
  ops::Linear(stream, h, block.router, nullptr, a.logits);
  ops::Route(stream, a.logits, config.normalized, routing);
  ops::Experts(stream, h, routing, block.experts, function, a.scratch.data, x);
}

}  // namespace litecache::model

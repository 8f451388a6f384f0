#include "model/expert_block.h"

#include <fmt/core.h>

#include <cmath>
#include <initializer_list>

#include "ops/dense/activation.h"
#include "ops/dense/norm.h"
#include "ops/dense/scale.h"
#include "ops/linear/linear.h"

namespace litecache::model {

namespace {

constexpr const char* kSharedParts[ops::kExpertParts] = {"gate_proj", "up_proj", "down_proj"};

// Whether the shared expert can be one of the others: its matrices have their shapes and types.
bool Joins(const WeightStore& weights, const ExpertConfig& config, const ExpertRequest& routed,
           const std::string& shared) {
  // Of experts in host memory the device keeps those that routers ask for, and counts them.
  if (config.shared != config.intermediate || weights.experts_on_host()) return false;
  if (!config.gates_shared()) return false;  // its weight is the sigmoid of a logit
  // Where a rank has some of the others only, it still has a part of this one.
  if (config.own.count > 0) return false;
  for (int part = 0; part < ops::kExpertParts; ++part) {
    const int64_t rows = routed.Rows(part), cols = routed.Cols(part);
    const MatrixView one = weights.Type(routed.name(part, 0), rows, cols);
    const MatrixView other =
        weights.Type(fmt::format("{}.{}.weight", shared, kSharedParts[part]), rows, cols);
    if (one.dtype != other.dtype || one.format != other.format) return false;
  }
  return true;
}

ops::Router RouterOf(const ExpertConfig& config, const ExpertBlock& block) {
  return {.sigmoid = config.sigmoid,
          .normalized = config.normalized,
          .scale = config.scale,
          .correction = block.correction,
          .scales = block.scales};
}

ops::Routing RoutingOf(const ExpertConfig& config, const ExpertBlock& block,
                       const ExpertActivations& a, int64_t rows) {
  return {.experts = static_cast<int32_t*>(a.experts.data),
          .weights = a.weights.Row<float>(0),
          .rows = rows,
          .active = block.Active(config)};
}

}  // namespace

ExpertBlock TakeExperts(WeightStore& weights, const ExpertConfig& config, int64_t hidden,
                        int64_t layer, const std::string& name) {
  const LayerPlace place{layer, LayerPart::kRest};
  ExpertBlock block;
  const std::string module = config.module.empty() ? name : name + config.module + ".";
  const std::string router = fmt::format("{}{}.", module, config.router);
  const std::string shared = module + config.shared_module;
  block.router = weights.LayerMatrix(place, router + "weight", config.count, hidden);
  const std::string* const modules[] = {&config.gate, &config.up, &config.down};
  ExpertRequest request = {.place = place,
                           .count = config.own_count(),
                           .hidden = hidden,
                           .intermediate = config.intermediate,
                           .name = [&](int part, int64_t expert) {
                             if (expert == config.own_count()) {
                               return fmt::format("{}.{}.weight", shared, kSharedParts[part]);
                             }
                             return fmt::format("{}experts.{}.{}.weight", module,
                                                config.own.first + expert, *modules[part]);
                           }};
  block.joined = config.shared > 0 && Joins(weights, config, request, shared);
  if (block.joined) ++request.count;
  block.experts = weights.Experts(request);
  block.experts.elsewhere = config.count - config.own_count();
  const auto take = [&](const std::string& matrix, int64_t rows, int64_t cols) {
    return weights.LayerMatrix(place, fmt::format("{}{}.weight", shared, matrix), rows, cols);
  };
  if (config.gates_shared()) block.shared.share = take("_gate", 1, hidden);
  if (config.shared > 0 && !block.joined) {
    block.shared.gate = take(".gate_proj", config.shared, hidden);
    block.shared.up = take(".up_proj", config.shared, hidden);
    block.shared.down = take(".down_proj", hidden, config.shared);
  }
  if (!config.correction.empty()) {
    block.correction = weights.Bias(module + config.correction, config.count);
  }
  if (config.beside) {
    const auto vector = [&](const char* of, int64_t n) {
      return weights.NormWeight(name + of, n, 0);
    };
    block.beside = {.router = vector("router.scale", hidden),
                    .input = vector("pre_feedforward_layernorm_2.weight", hidden),
                    .output = vector("post_feedforward_layernorm_2.weight", hidden),
                    .ordinary = vector("post_feedforward_layernorm_1.weight", hidden)};
    block.scales = vector("router.per_expert_scale", config.count);
  }
  if (!config.bias) return block;
  block.router_bias = weights.Bias(router + "bias", config.count);
  for (int part = 0; part < ops::kExpertParts; ++part) {
    ops::PartOf(block.experts, part).bias =
        weights.Bias(fmt::format("{}experts.*.{}.bias", module, *modules[part]),
                     config.own_count() * request.Rows(part));
  }
  return block;
}

ExpertActivations ExpertActivations::Rows(int64_t begin, int64_t count) const {
  ExpertActivations a = *this;
  for (MatrixView* view :
       {&a.logits, &a.experts, &a.weights, &a.share, &a.shared_gate, &a.shared_up, &a.beside}) {
    if (view->rows > 0) *view = view->Rows(begin, count);
  }
  return a;
}

ExpertActivations PlaceExperts(Arena& arena, const ExpertConfig& config, int64_t hidden,
                               DType product, int64_t rows, uint64_t scratch_bytes) {
  ExpertActivations a;
  a.logits = arena.Take(rows, config.count);
  const int64_t active = config.active + (config.shared > 0 ? 1 : 0);
  a.experts = arena.Take(rows, active);
  a.weights = arena.Take(rows, active);
  a.scratch = arena.Take(1, static_cast<int64_t>((scratch_bytes + 3) / sizeof(float)));
  if (config.beside) a.beside = arena.Take(rows, hidden);
  if (config.gates_shared()) a.share = arena.Take(rows, 1);
  if (config.shared > 0) {
    a.shared_gate = arena.Take(rows, config.shared, product);
    a.shared_up = arena.Take(rows, config.shared, product);
  }
  return a;
}

void RunExperts(Stream& stream, const ExpertConfig& config, const ExpertBlock& block,
                const MatrixView& h, const ops::GateFunction& function, const ExpertActivations& a,
                const MatrixView& x) {
  const ops::Routing routing = RoutingOf(config, block, a, h.rows);
  const ops::LinearPart router = {.weight = block.router, .bias = block.router_bias, .y = a.logits};
  const SharedExpert& shared = block.shared;
  if (config.gates_shared()) {
    const std::initializer_list<ops::LinearPart> parts = {router,
                                                          {.weight = shared.share, .y = a.share}};
    ops::Linear(stream, h, parts);
  } else {
    ops::Linear(stream, h, {&router, 1});
  }
  ops::Route(stream, a.logits, RouterOf(config, block), routing,
             block.joined ? a.share : MatrixView(), config.own);
  ops::Experts(stream, h, routing, block.experts, function, a.scratch.data, x);
  if (config.shared == 0 || block.joined) return;
  ops::GatedLinear(stream, h, {.weight = shared.gate, .y = a.shared_gate},
                   {.weight = shared.up, .y = a.shared_up}, function);
  if (config.gates_shared()) ops::SigmoidMul(stream, a.share, a.shared_gate);
  ops::Linear(stream, a.shared_gate, shared.down, nullptr, x, ops::Epilogue::kAdd);
}

void RunExpertsBeside(Stream& stream, const ExpertConfig& config, const ExpertBlock& block,
                      const MatrixView& x, float epsilon, const ops::GateFunction& function,
                      const ExpertActivations& a, const MatrixView& h, const MatrixView& y) {
  const BesideNorms& norms = block.beside;
  const ops::Routing routing = RoutingOf(config, block, a, x.rows);
  ops::RmsNorm(stream, x, norms.router, epsilon, 1, h);
  ops::Linear(stream, h, block.router, nullptr, a.logits);
  ops::Scale(stream, 1 / std::sqrt(static_cast<float>(x.cols)), a.logits);
  ops::Route(stream, a.logits, RouterOf(config, block), routing);
  ops::RmsNorm(stream, x, norms.input, epsilon, 1, h);
  ops::Scale(stream, 0, a.beside);
  ops::Experts(stream, h, routing, block.experts, function, a.scratch.data, a.beside);
  ops::RmsNorm(stream, a.beside, norms.output, epsilon, 1, a.beside);
  ops::RmsNorm(stream, y, norms.ordinary, epsilon, 1, y);
  ops::AddScaled(stream, 1, a.beside, y);
}

}  // namespace litecache::model

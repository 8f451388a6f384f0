#include "lab/tests/life.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "base/error.h"
#include "kv/attention_error.h"
#include "lab/trace/replays_trace.h"

namespace litecache::lab {

namespace {

std::unique_ptr<CachePlan> Replaying(std::unique_ptr<CachePlan> plan,
                                     const std::shared_ptr<const Trace>& trace) {
  EXPECT_TRUE(trace == nullptr || ReplayTrace(plan.get(), trace));
  return plan;
}

}  // namespace

Life::Life(std::unique_ptr<CachePlan> plan, uint64_t seed, const Settings& settings)
    : random_(seed),
      plan_(Replaying(std::move(plan), settings.trace)),
      layout_(plan_->layout()),
      scale_(1.0f / std::sqrt(static_cast<float>(layout_.head_dim))),
      machine_(OpenMachine(settings.device, 2)),
      stream_(machine_.compute().CreateStream()),
      cache_(plan_->Create(machine_.compute(), settings.budget)) {}

SequenceId Life::Create() {
  const SequenceId id = cache_->Create();
  sequences_[id].layers.resize(static_cast<size_t>(layout_.layers));
  charges_.Create(id);
  return id;
}

SequenceId Life::Fork(SequenceId parent) {
  const SequenceId id = cache_->Fork(parent);
  sequences_[id] = sequences_.at(parent);
  charges_.Fork(parent, id, cache_->Length(parent));
  Forked(parent, id);
  return id;
}

void Life::Release(SequenceId id) {
  cache_->Release(id);
  sequences_.erase(id);
  charges_.Release(id);
}

std::vector<Life::Inputs> Life::Draw(const kv::Step& step) {
  std::vector<Inputs> all(static_cast<size_t>(layout_.layers));
  const auto fill = [&](std::vector<float>* x, int64_t cols, float size) {
    x->resize(static_cast<size_t>(step.rows * cols));
    for (float& value : *x) value = size * normal_(random_);
  };
  const int64_t d = layout_.head_dim;
  for (Inputs& inputs : all) {
    fill(&inputs.q, layout_.q_heads * d, 2);
    fill(&inputs.k, layout_.kv_heads * d, 1);
    fill(&inputs.v, layout_.kv_heads * d, 1);
    inputs.predicted = inputs.q;
    for (float& x : inputs.predicted) x += 0.4f * normal_(random_);
  }
  return all;
}

void Life::Step(const std::vector<Part>& parts, int64_t fail_after) {
  const kv::Step step = MakeStep(*cache_, parts);
  const std::vector<Inputs> inputs = Draw(step);
  if (fail_after >= 0) {
    cache_->BeginStep(step);
    RunLayers(step, inputs, std::min(fail_after, layout_.layers), false);
  }
  cache_->BeginStep(step);
  charges_.Check(*cache_, step);
  RunLayers(step, inputs, layout_.layers, true);
  cache_->EndStep(step);
  charges_.Check(*cache_, step);
  for (const StepSequence& part : step.sequences) {
    Sequence& sequence = sequences_.at(part.id);
    sequence.length += part.rows;
    EXPECT_EQ(cache_->Length(part.id), sequence.length);
    if (!part.decode) EndPrompt(part);
  }
}

void Life::RunLayers(const kv::Step& step, const std::vector<Inputs>& inputs, int64_t layers,
                     bool compare) {
  DeviceInputs memory(machine_.compute());
  const auto copy = [&](const std::vector<float>& values, int64_t rows) {
    return memory.Copy(values.data(), DType::kF32, rows,
                       static_cast<int64_t>(values.size()) / rows);
  };
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    for (int64_t next = layer + 1; next < layout_.layers; ++next) {
      if (step.decode_rows == 0 || cache_->PredictionSource(next) != layer) continue;
      const Inputs& of_next = inputs[static_cast<size_t>(next)];
      cache_->Prefetch(*stream_, next, step,
                       copy(of_next.predicted, step.rows).Rows(0, step.decode_rows), scale_);
    }
    const Inputs& in = inputs[l];
    std::vector<float> out(in.q.size(), NAN);
    const MatrixView result = copy(out, step.rows);
    cache_->Attend(*stream_, layer, step, copy(in.q, step.rows), copy(in.k, step.rows),
                   copy(in.v, step.rows), scale_, result);
    stream_->Synchronize();
    machine_.compute().Download(out.data(), result.data, out.size() * sizeof(float));
    memory.Clear();
    if (compare) Compare(step, layer, in, out);
  }
}

void Life::AttendTo(const std::vector<int64_t>& tokens, int64_t head, const float* q,
                    const Rows& rows, std::vector<double>* out) const {
  const auto d = static_cast<size_t>(layout_.head_dim);
  for (int64_t j = 0; j < group(); ++j) {
    const size_t q_at = static_cast<size_t>(head * group() + j) * d;
    std::vector<double> scores;
    double largest = -HUGE_VAL;
    for (const int64_t t : tokens) {
      const double* key = rows.k[static_cast<size_t>(t)].data() + static_cast<size_t>(head) * d;
      double score = 0;
      for (size_t c = 0; c < d; ++c) score += static_cast<double>(q[q_at + c]) * key[c];
      scores.push_back(score * static_cast<double>(scale_));
      largest = std::max(largest, scores.back());
    }
    double sum = 0;
    std::fill_n(out->begin() + static_cast<int64_t>(q_at), d, 0.0);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const double p = std::exp(scores[i] - largest);
      sum += p;
      const double* value =
          rows.v[static_cast<size_t>(tokens[i])].data() + static_cast<size_t>(head) * d;
      for (size_t c = 0; c < d; ++c) (*out)[q_at + c] += p * value[c];
    }
    for (size_t c = 0; c < d; ++c) (*out)[q_at + c] /= sum;
  }
}

void Life::Compare(const kv::Step& step, int64_t layer, const Inputs& inputs,
                   const std::vector<float>& out) {
  const int64_t q_cols = layout_.q_heads * layout_.head_dim;
  const int64_t kv_cols = layout_.kv_heads * layout_.head_dim;
  const auto round = [&](float x) {
    return static_cast<double>(layout_.dtype == DType::kBF16 ? static_cast<float>(bf16(x)) : x);
  };
  int64_t index = 0;
  for (const StepSequence& part : step.sequences) {
    Rows& rows = sequences_.at(part.id).layers[static_cast<size_t>(layer)];
    rows.k.resize(static_cast<size_t>(part.past));
    rows.v.resize(static_cast<size_t>(part.past));
    for (int64_t r = 0; r < part.rows; ++r) {
      std::vector<double> k, v;
      for (int64_t c = 0; c < kv_cols; ++c) {
        const auto at = static_cast<size_t>((part.first_row + r) * kv_cols + c);
        k.push_back(round(inputs.k[at]));
        v.push_back(round(inputs.v[at]));
      }
      rows.k.push_back(std::move(k));
      rows.v.push_back(std::move(v));
    }
    const float* q = inputs.q.data() + part.first_row * q_cols;
    const auto check = [&](const std::vector<double>& expected, int64_t row) {
      const auto got = std::span(out).subspan(static_cast<size_t>((part.first_row + row) * q_cols),
                                              static_cast<size_t>(q_cols));
      EXPECT_LE(testing::RelativeError(got, expected), AttentionTolerance(layout_.dtype))
          << "sequence " << part.id << " layer " << layer << " past " << part.past
          << (part.decode ? " decode" : " prefill");
    };
    if (part.decode) {
      check(
          Decode(part, index++, layer, q, inputs.predicted.data() + part.first_row * q_cols, rows),
          0);
      continue;
    }
    for (int64_t r = 0; r < part.rows; ++r) {
      std::vector<int64_t> all(static_cast<size_t>(part.past + r + 1));
      std::iota(all.begin(), all.end(), 0);
      std::vector<double> expected(static_cast<size_t>(q_cols));
      for (int64_t head = 0; head < layout_.kv_heads; ++head) {
        AttendTo(all, head, q + r * q_cols, rows, &expected);
      }
      check(expected, r);
    }
    Prompt(part, layer, q, rows);
  }
}

void Life::RunRandom(int steps, int64_t first_prompt, int64_t longest_prompt, bool fails) {
  const std::vector<SequenceId> ids = LiveRandomly(*this, random_,
                                                   {.steps = steps,
                                                    .layers = layout_.layers,
                                                    .first_prompt = first_prompt,
                                                    .longest_prompt = longest_prompt,
                                                    .prompts = 20,
                                                    .failures = fails ? 10 : 0});
  for (const SequenceId id : ids) Release(id);
  if (::testing::Test::HasFailure()) return;
  EXPECT_EQ(cache_->GetStats().used, TierBytes{});
}

void Life::ExpectRefusalsLeaveNothing(const CachePlan& plan, const std::string& device,
                                      const std::vector<int64_t>& other_prompts, const Make& make) {
  const bool gpu = device == "cuda";
  for (const bool device_tier : {false, true}) {
    const TierBytes need = plan.BytesFor(600);
    const TierBytes budget = {.device = device_tier ? need.device : kPlenty.device,
                              .host = device_tier ? kPlenty.host : need.host};
    const std::unique_ptr<Life> life = make({.budget = budget, .device = device});
    const SequenceId a = life->Create(), b = life->Create();
    life->Step({{a, 400, false}});
    if (device_tier && !gpu) {  // prompts use no device memory in this case
      for (const int64_t rows : other_prompts) life->Step({{b, rows, false}});
    }
    for (int i = 0; i < 30; ++i) life->Step({{a}});
    const TierBytes used = life->cache().GetStats().used;
    const Part more = device_tier && !gpu ? Part{b} : Part{b, 5000, false};
    EXPECT_THROW(life->cache().BeginStep(MakeStep(life->cache(), {{a}, more})), CapacityError);
    EXPECT_EQ(life->cache().GetStats().used, used);
    while (life->cache().Length(a) < 600) life->Step({{a}});
    EXPECT_LE(life->cache().GetStats().peak.device, budget.device);
  }
}

}  // namespace litecache::lab

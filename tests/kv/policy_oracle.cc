#include "kv/policy_oracle.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kv/attention_error.h"
#include "kv/truncation.h"
#include "ops/common/row_format.h"

namespace litecache::kv {

PolicyOracle::PolicyOracle(const CachePlan& plan, Sees sees, uint64_t seed, const TierBytes& budget,
                           std::optional<ops::RowEncoding> stored, const std::string& device)
    : random_(seed),
      layout_(plan.layout()),
      sees_(std::move(sees)),
      stored_(stored),
      scale_(1.0f / std::sqrt(static_cast<float>(layout_.head_dim))),
      machine_(OpenMachine(device, 2)),
      stream_(machine_.compute().CreateStream()),
      cache_(plan.Create(machine_.compute(), budget)) {}

SequenceId PolicyOracle::Create() {
  const SequenceId id = cache_->Create();
  const auto layers = static_cast<size_t>(layout_.layers);
  sequences_[id] = {.length = 0, .k = std::vector<Rows>(layers), .v = std::vector<Rows>(layers)};
  return id;
}

SequenceId PolicyOracle::Fork(SequenceId parent) {
  const SequenceId id = cache_->Fork(parent);
  sequences_[id] = sequences_.at(parent);
  return id;
}

SequenceId PolicyOracle::ForkPrefix(SequenceId parent) {
  const int64_t tokens = cache_->PrefixLength(parent);
  const SequenceId id = cache_->ForkPrefix(parent, tokens);
  Sequence& child = sequences_[id] = sequences_.at(parent);
  child.length = tokens;
  for (auto* layers : {&child.k, &child.v}) {
    for (Rows& rows : *layers) rows.resize(static_cast<size_t>(tokens));
  }
  return id;
}

void PolicyOracle::Release(SequenceId id) {
  cache_->Release(id);
  sequences_.erase(id);
}

void PolicyOracle::TakeBack(SequenceId id, int64_t tokens) {
  Sequence& sequence = sequences_.at(id);
  sequence.length -= tokens;
  cache_->Truncate(id, sequence.length);
  EXPECT_EQ(cache_->Length(id), sequence.length);
  for (auto* layers : {&sequence.k, &sequence.v}) {
    for (Rows& rows : *layers) rows.resize(static_cast<size_t>(sequence.length));
  }
  CheckMemory();
}

int64_t PolicyOracle::Removable(SequenceId id) const {
  const auto* limited = dynamic_cast<const LimitedTruncation*>(cache_.get());
  return cache_->Length(id) - (limited != nullptr ? limited->ShortestLength(id) : 0);
}

int64_t PolicyOracle::HeadDim(int64_t layer) const {
  const bool own = HasWindow(layer) && layout_.window_head_dim > 0;
  return own ? layout_.window_head_dim : layout_.head_dim;
}

int64_t PolicyOracle::KvHeads(int64_t layer) const {
  const bool own = HasWindow(layer) && layout_.window_kv_heads > 0;
  return own ? layout_.window_kv_heads : layout_.kv_heads;
}

// [kv_heads * head_dim], rounded to the layout's dtype, or as read back from the store.
std::vector<double> PolicyOracle::RoundRow(int64_t layer, const float* x,
                                           std::optional<ops::RowEncoding> stored) const {
  const int64_t d = HeadDim(layer);
  const ops::RowFormat f32{ops::RowEncoding::kF32, d}, device = ops::FormatOf(layout_.dtype, d);
  const ops::RowFormat host{stored.value_or(device.encoding), d};
  std::vector<float> row(static_cast<size_t>(2 * d));
  std::vector<std::byte> there(device.row_bytes()), kept(host.row_bytes());
  std::vector<double> result;
  for (int64_t head = 0; head < KvHeads(layer); ++head) {
    std::copy_n(x + head * d, d, row.begin());
    std::copy_n(x + head * d, d, row.begin() + d);
    ops::ConvertRow(f32, reinterpret_cast<const std::byte*>(row.data()), device, there.data());
    ops::ConvertRow(device, there.data(), host, kept.data());
    ops::ConvertRow(host, kept.data(), device, there.data());
    ops::ConvertRow(device, there.data(), f32, reinterpret_cast<std::byte*>(row.data()));
    result.insert(result.end(), row.begin(), row.begin() + d);
  }
  return result;
}

void PolicyOracle::Draw(const kv::Step&, int64_t, LayerInputs* inputs) {
  for (auto* values : {&inputs->q, &inputs->k, &inputs->v}) {
    for (float& x : *values) x = normal_(random_);
  }
}

void PolicyOracle::Layers(const kv::Step& step, std::vector<LayerInputs>& inputs, int64_t layers,
                          std::vector<std::vector<float>>* outs) {
  for (int64_t layer = 0; layer < layers; ++layer) {
    const int64_t q_cols = layout_.q_heads * HeadDim(layer);
    const int64_t kv_cols = KvHeads(layer) * HeadDim(layer);
    LayerInputs& in = inputs[static_cast<size_t>(layer)];
    outs->emplace_back(in.q.size(), NAN);
    BeforeAttend(step, layer);
    const auto f32 = [&](const std::vector<float>& values, int64_t cols) {
      return ToDevice(values.data(), DType::kF32, step.rows, cols);
    };
    const MatrixView out = f32(outs->back(), q_cols);
    cache_->Attend(*stream_, layer, step, f32(in.q, q_cols), f32(in.k, kv_cols), f32(in.v, kv_cols),
                   {scale_, nullptr, cap_}, out);
    stream_->Synchronize();
    device().Download(outs->back().data(), out.data, outs->back().size() * sizeof(float));
    layer_inputs_.Clear();
  }
}

void PolicyOracle::Step(const std::vector<Part>& parts, int64_t fail_after) {
  const kv::Step step = MakeStep(*cache_, parts);
  const auto rows = static_cast<size_t>(step.rows);
  std::vector<LayerInputs> inputs(static_cast<size_t>(layout_.layers));
  for (int64_t layer = 0; layer < layout_.layers; ++layer) {
    LayerInputs& in = inputs[static_cast<size_t>(layer)];
    const auto d = static_cast<size_t>(HeadDim(layer));
    in.q.resize(rows * static_cast<size_t>(layout_.q_heads) * d);
    in.k.resize(rows * static_cast<size_t>(KvHeads(layer)) * d);
    in.v.resize(in.k.size());
    Draw(step, layer, &in);
  }
  if (fail_after >= 0) {
    std::vector<std::vector<float>> outs;
    cache_->BeginStep(step);
    Layers(step, inputs, std::min(fail_after, layout_.layers), &outs);
  }
  std::vector<std::vector<float>> outs;
  cache_->BeginStep(step);
  Layers(step, inputs, layout_.layers, &outs);
  for (int64_t layer = 0; layer < layout_.layers; ++layer) {
    Compare(step, layer, inputs[static_cast<size_t>(layer)], outs[static_cast<size_t>(layer)]);
  }
  cache_->EndStep(step);
  for (const StepSequence& part : step.sequences) {
    EXPECT_EQ(cache_->Length(part.id), sequences_.at(part.id).length += part.rows);
  }
  CheckMemory();
}

void PolicyOracle::Compare(const kv::Step& step, int64_t layer, const LayerInputs& inputs,
                           const std::vector<float>& out) {
  const auto d = static_cast<size_t>(HeadDim(layer));
  const auto kv_cols = static_cast<size_t>(KvHeads(layer)) * d;
  const auto q_heads = static_cast<size_t>(layout_.q_heads);
  const size_t group = q_heads / static_cast<size_t>(KvHeads(layer));
  for (const StepSequence& part : step.sequences) {
    Sequence& sequence = sequences_.at(part.id);
    Rows& k = sequence.k[static_cast<size_t>(layer)];
    Rows& v = sequence.v[static_cast<size_t>(layer)];
    for (int64_t i = 0; i < part.rows; ++i) {
      const size_t at = static_cast<size_t>(part.first_row + i) * kv_cols;
      k.push_back(RoundRow(layer, inputs.k.data() + at, std::nullopt));
      v.push_back(RoundRow(layer, inputs.v.data() + at, std::nullopt));
    }
    const bool windowed = HasWindow(layer);
    double worst = 0;
    for (int64_t i = 0; i < part.rows; ++i) {
      const int64_t token = part.past + i;
      std::vector<double> expected(q_heads * d);
      double size = 0;  // sum of squares of the terms that outputs consist of
      for (size_t head = 0; head < q_heads; ++head) {
        const size_t at = (static_cast<size_t>(part.first_row + i) * q_heads + head) * d;
        const size_t kv = head / group * d;
        double highest = -HUGE_VAL, sum = 0;
        std::vector<std::pair<size_t, double>> scores;
        for (int64_t t = 0; t <= token; ++t) {
          if (windowed ? t <= token - layout_.window : !sees_(token, t)) continue;
          double score = 0;
          for (size_t j = 0; j < d; ++j) {
            score += static_cast<double>(inputs.q[at + j]) * k[static_cast<size_t>(t)][kv + j];
          }
          score *= static_cast<double>(scale_);
          if (cap_ != 0) score = cap_ * std::tanh(score / cap_);
          scores.emplace_back(static_cast<size_t>(t), score);
          highest = std::max(highest, scores.back().second);
        }
        for (const auto& [t, score] : scores) {
          const double weight = std::exp(score - highest);
          sum += weight;
          for (size_t j = 0; j < d; ++j) expected[head * d + j] += weight * v[t][kv + j];
        }
        for (const auto& [t, score] : scores) {
          const double share = std::exp(score - highest) / sum;
          for (size_t j = 0; j < d; ++j) size += std::pow(share * v[t][kv + j], 2);
        }
        for (size_t j = 0; j < d; ++j) expected[head * d + j] /= sum;
      }
      const auto row = static_cast<size_t>(part.first_row + i) * q_heads * d;
      // Each term is rounded separately, so that errors accumulate like random terms. The outputs
      // themselves may vanish if values lie in a plane (Layout::hidden = 2).
      worst =
          std::max(worst, testing::Distance(std::span(out).subspan(row, q_heads * d), expected) /
                              std::sqrt(size));
    }
    EXPECT_LE(worst, AttentionTolerance(layout_.dtype))
        << "sequence " << part.id << " layer " << layer << " past " << part.past << " rows "
        << part.rows << (part.decode ? " decode" : " prefill");
    if (!stored_) continue;
    for (int64_t i = 0; i < part.rows; ++i) {
      const size_t at = static_cast<size_t>(part.first_row + i) * kv_cols;
      k[static_cast<size_t>(part.past + i)] = RoundRow(layer, inputs.k.data() + at, stored_);
      v[static_cast<size_t>(part.past + i)] = RoundRow(layer, inputs.v.data() + at, stored_);
    }
  }
}

void PolicyOracle::CheckMemory() {
  // Shared pages are counted once in the memory in use.
  TierBytes limit;
  for (const auto& [id, sequence] : sequences_) limit += cache_->BytesFor(sequence.length);
  const TierBytes used = cache_->GetStats().used;
  EXPECT_LE(used.device, limit.device);
  EXPECT_LE(used.host, limit.host);
}

void PolicyOracle::RunLife(int steps, int64_t longest_prompt) {
  const auto first = static_cast<int64_t>(random_() % static_cast<uint64_t>(longest_prompt));
  LiveRandomly(*this, random_,
               {.steps = steps,
                .layers = layout_.layers,
                .first_prompt = 1 + first,
                .longest_prompt = longest_prompt,
                .prompts = 10,
                .failures = 8,
                .repeats = 5,
                .drafts = cache_->CanTruncate() ? 6 : 0});
}

}  // namespace litecache::kv

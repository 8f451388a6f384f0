#include "model/transformer_heads.h"

#include <algorithm>

#include "base/error.h"
#include "ops/dense/gather.h"
#include "ops/dense/norm.h"

namespace litecache::model {
namespace {

void Rotations(Stream& stream, const DeviceRopeTable& rope, std::span<const int32_t> positions,
               const MatrixView& rotations, const ops::RopeGrowth& growth = {}) {
  ops::RopeRotations(stream, positions, rope.inv_freq(), rope.attention_factor(), rotations,
                     growth);
}

Buffer Ones(Device& device, const ModelConfig& config) {
  if (!config.value_norm) return {};
  const int64_t most = std::max(config.head_dim, config.window_head_dim);
  const std::vector<float> ones(static_cast<size_t>(most), 1.0f);
  Buffer memory = device.Allocate(ones.size() * sizeof(float));
  device.Upload(memory.data(), ones.data(), memory.size());
  return memory;
}

}  // namespace

TransformerHeads::TransformerHeads(Device& device, const ModelConfig& config)
    : device_(device),
      config_(config),
      rope_(device, MakeRopeTable(config.rope, config.rotated())),
      ones_(Ones(device, config)) {
  if (!config.window_rope) return;
  window_rope_.emplace(device, MakeRopeTable(*config.window_rope, WindowRotated(config)));
}

void TransformerHeads::Prepare(Stream& stream, std::span<const int32_t> positions,
                               const TransformerActivations& a) const {
  Rotations(stream, rope_, positions, a.rotations);
  if (window_rope_) Rotations(stream, *window_rope_, positions, a.window_rotations);
  if (a.query_rotations.rows == 0) return;
  const ops::RopeGrowth growth = {static_cast<float>(config_.rope.query_growth),
                                  static_cast<float>(config_.rope.original_context)};
  Rotations(stream, rope_, positions, a.query_rotations, growth);
}

void TransformerHeads::Rotate(Stream& stream, int64_t index, const MatrixView& rotations,
                              std::span<const ops::ProjectedHeads> parts) const {
  const bool wide = config_.wide_qk_norm, rotates = config_.rotates(index);
  const auto pairs =
      config_.rotary_neighbours ? ops::RopePairs::kNeighbours : ops::RopePairs::kHalves;
  const bool norm_first = !config_.qk_norm_after_rope;
  if (!wide && rotates && norm_first) {
    return ops::RotateHeads(stream, parts, Epsilon(), rotations.Rows(0, parts.front().x.rows),
                            pairs);
  }
  for (const auto& [x, heads, norm] : parts) {
    if (norm != nullptr && wide && config_.shard.whole != nullptr) {
      // The engine does not let it come to this (PossibleTogether).
      throw Unsupported(
          "norms over all heads: with tensor_parallel, keys are not computed "
          "again and queries not predicted; use no kvpr, and prefetch = off");
    }
    const auto normalize = [&, &x = x, &heads = heads, &norm = norm] {
      if (norm != nullptr) ops::RmsNorm(stream, x, norm, Epsilon(), wide ? 1 : heads, x);
    };
    if (norm_first) normalize();
    if (rotates) ops::Rope(stream, x, rotations.Rows(0, x.rows), heads, pairs);
    if (!norm_first) normalize();
  }
}

void TransformerHeads::RotateWithKeys(Stream& stream, int64_t index,
                                      const TransformerActivations& a,
                                      parallel::Communicator* ranks,
                                      std::initializer_list<ops::ProjectedHeads> parts) const {
  std::vector<ops::ProjectedHeads> all(parts);
  if (config_.wide_qk_norm && ranks != nullptr) {
    for (ops::ProjectedHeads& part : all) {
      NormTogether(stream, part.x, part.norm, *ranks, a);
      part.norm = nullptr;
    }
  }
  const std::span<const ops::ProjectedHeads> span(all);
  const MatrixView &queries = QueryRotationsOf(index, a), &keys = RotationsOf(index, a);
  if (&queries == &keys) return Rotate(stream, index, keys, span);
  Rotate(stream, index, queries, span.first(span.size() - 1));
  Rotate(stream, index, keys, span.last(1));
}

void TransformerHeads::NormTogether(Stream& stream, const MatrixView& x, const float* norm,
                                    parallel::Communicator& ranks,
                                    const TransformerActivations& a) const {
  const int64_t count = config_.shard.ranks;
  const auto parts = MatrixView::Of(a.wide_parts.Row<float>(0), count * x.rows, x.cols);
  const auto whole = MatrixView::Of(a.wide.Row<float>(0), x.rows, count * x.cols);
  ranks.AllGather(stream, x, parts);
  for (int64_t rank = 0; rank < count; ++rank) {
    ops::CopyRows(stream, parts.Rows(rank * x.rows, x.rows), whole.Columns(rank * x.cols, x.cols));
  }
  ops::RmsNorm(stream, whole, norm, Epsilon(), 1, whole);
  ops::CopyRows(stream, whole.Columns(config_.shard.rank * x.cols, x.cols), x);
}

float* TransformerHeads::KeyRotations(const Stream& stream, int64_t floats) {
  auto& [first, last] = key_rotations_;
  if (last.stream != &stream) {
    std::swap(first, last);
    if (last.stream != &stream) last = {&stream, Buffer()};
  }
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (last.rotations.size() < bytes) {
    last.rotations = Buffer();
    last.rotations = device_.Allocate(bytes);
  }
  return last.rotations.as<float>();
}

void TransformerHeads::RotateKeys(Stream& stream, int64_t index, std::span<const int32_t> positions,
                                  const ops::ProjectedHeads& keys) {
  const int64_t rows = keys.x.rows, rotated = config_.rotated();
  const auto rotations = MatrixView::Of(KeyRotations(stream, rows * rotated), rows, rotated);
  Rotations(stream, RopeOf(index), positions, rotations);
  Rotate(stream, index, rotations, {&keys, 1});
}

void TransformerHeads::FinishValues(Stream& stream, int64_t index, const TransformerLayer& layer,
                                    const MatrixView& k, const MatrixView& v) const {
  if (layer.v.weight.rows == 0) ops::CopyRows(stream, k, v);
  if (!config_.value_norm) return;
  ops::RmsNorm(stream, v, ones_.as<const float>(), Epsilon(), config_.kv_heads_of(index), v);
}

}  // namespace litecache::model

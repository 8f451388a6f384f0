// The part of a forward pass that all families share: memory for the activations, and the cache's
// step around the operations.
#pragma once

#include <cstdint>
#include <span>

#include "model/decoder_base.h"

namespace litecache::model {

// Activations: a family's own struct of views into the arena.
template <class Activations>
class StepDecoder : public DecoderBase {
 public:
  uint64_t WorkspaceBytes(int64_t rows, int64_t logit_rows) const final {
    Arena arena;
    PlaceActivations(arena, rows, logit_rows);
    return arena.peak();
  }

  void Forward(Stream& stream, const kv::Step& step, std::span<const int32_t> tokens,
               std::span<const int32_t> positions, kv::Cache& cache,
               std::span<const int64_t> logit_rows, const MatrixView& logits) final {
    CheckStep(step, tokens, positions, cache, logit_rows, logits);
    const auto count = static_cast<int64_t>(logit_rows.size());
    Arena arena = Workspace(WorkspaceBytes(step.rows, count));
    const Activations placed = PlaceActivations(arena, step.rows, count);
    cache.BeginStep(step);
    Run(stream, step, tokens, positions, cache, logit_rows, logits,
        [&](const Inputs& inputs) { Issue(stream, step, inputs, cache, placed, logits); });
    cache.EndStep(step);
  }

 protected:
  using DecoderBase::DecoderBase;

  virtual Activations PlaceActivations(Arena& arena, int64_t rows, int64_t logit_rows) const = 0;
  // Issues the operations of a step.
  virtual void Issue(Stream& stream, const kv::Step& step, const Inputs& inputs, kv::Cache& cache,
                     Activations activations, const MatrixView& logits) = 0;
};

}  // namespace litecache::model

// Recurrent layers whose last tokens can be taken back. A state is that of its last token, and
// cannot be computed backwards. So before a step whose tokens may be taken back, the states are
// copied, and what the layers' projections give for the step's tokens is kept: to go back to one of
// them, the copies take the states' place, and the tokens before it pass through the layers again.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/recurrent/recurrent_cache.h"
#include "kv/truncation.h"
#include "ops/recurrence/gated_delta.h"

namespace litecache::kv {

class RecurrentDrafts : public RecurrentCache, public LimitedTruncation {
 public:
  void Release(SequenceId id) override;
  TierBytes BytesHeld(std::span<const SequenceId> ids) const override;

  bool CanTruncate() const override { return room_ > 0; }
  int64_t ShortestLength(SequenceId id) const override;
  void Truncate(SequenceId id, int64_t tokens) override;

  void BeginStep(const Step& step) override;
  void EndStep(const Step& step) override;

 protected:
  // draft_tokens: the most tokens of a sequence that a step drafts; 0: none can be taken back.
  RecurrentDrafts(Device& device, const Layout& layout, uint64_t budget_bytes,
                  int64_t draft_tokens);

  // Whether a part's tokens may be taken back: Keep() must be called before the layer's operation.
  bool Keeps(const StepSequence& part) const { return part.drafted && room_ > 0; }
  // Keeps a layer's state, unless an earlier step did, and its inputs, which may be overwritten.
  void Keep(Stream& stream, int64_t layer, const StepSequence& part,
            const ops::GatedDeltaWeights& weights, const ops::GatedDeltaInputs& in);
  float* State(SequenceId id, int64_t layer) const;

  // Copies f32 values within the device's memory, in the stream's order.
  virtual void Copy(Stream& stream, const MatrixView& from, const MatrixView& to) = 0;
  // Lets `rows` tokens of a sequence of `past` tokens pass through a layer; `in` may be
  // overwritten, nobody reads `out`.
  virtual void Repeat(SequenceId id, int64_t layer, int64_t rows, int64_t past,
                      const ops::GatedDeltaWeights& weights, const ops::GatedDeltaInputs& in,
                      const MatrixView& out) = 0;
  // Called when all layers' repetitions have been issued.
  virtual void FinishRepeating() {}

  const int64_t room_;  // tokens that can be kept of a sequence; 0: none can be taken back

 private:
  // What it takes to go back to a token of the last step, or of the last ones with one row each.
  struct Draft {
    int64_t begin = 0;   // tokens before these steps
    int64_t tokens = 0;  // of the steps that have ended
    int64_t rows = 0;    // of the first one
    // [layers]: the states before them; empty: nothing can be taken back.
    std::vector<PageId> states;
    Buffer inputs;  // f32 [layers][qkv [room, channels], rate and step [room, value_heads]]

    bool kept() const { return !states.empty(); }
  };

  // Whether a step's tokens are kept behind those of the steps before.
  bool GoesOn(const Draft& draft, const StepSequence& part) const {
    return draft.kept() && part.rows == 1 && draft.rows == 1 && draft.tokens < room_;
  }
  void Forget(SequenceId id);
  // Rows [begin, begin + rows) of a layer's kept inputs, without gates: they change no state.
  ops::GatedDeltaInputs Inputs(const Draft& draft, int64_t layer, int64_t begin,
                               int64_t rows) const;

  Device& device_;
  std::unordered_map<SequenceId, Draft> drafts_;
  std::vector<ops::GatedDeltaWeights> weights_;  // [layers], of the last step that has kept tokens
  Buffer outputs_;                               // scratch, f32 [room, width]
};

}  // namespace litecache::kv

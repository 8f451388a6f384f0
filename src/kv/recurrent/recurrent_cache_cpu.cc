// The states of recurrent layers on the CPU. A state is that of its last token, and cannot be
// computed backwards. So before a step whose tokens may be taken back, the states are copied, and
// what the layers' projections give for the step's tokens is kept: to go back to one of them, the
// copies take the states' place, and the tokens before it pass through the layers again.
#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "device/sections.h"
#include "kv/recurrent/recurrent_cache.h"
#include "kv/truncation.h"

namespace litecache::kv {
namespace {

// A token's inputs of a layer, as the projections give them.
int64_t InputFloats(const ops::GatedDeltaShape& shape) {
  return shape.channels() + 2 * shape.value_heads;
}

class CpuRecurrentCache final : public RecurrentCache, public LimitedTruncation {
 public:
  CpuRecurrentCache(Device& device, const Layout& layout, uint64_t budget_bytes,
                    int64_t draft_tokens)
      : RecurrentCache(device, layout, budget_bytes, draft_tokens > 0 ? 2 : 1),
        device_(device),
        stream_(device.CreateStream()),
        room_(draft_tokens > 0 ? draft_tokens + 1 : 0),
        weights_(static_cast<size_t>(layout.layers)) {}

  void Release(SequenceId id) override {
    RecurrentCache::Release(id);
    Forget(id);
    drafts_.erase(id);
  }
  TierBytes BytesHeld(std::span<const SequenceId> ids) const override {
    TierBytes bytes = RecurrentCache::BytesHeld(ids);
    for (const SequenceId id : ids) {
      const auto draft = drafts_.find(id);
      if (draft != drafts_.end()) bytes.device += draft->second.states.size() * pool_.page_bytes();
    }
    return bytes;
  }

  bool CanTruncate() const override { return room_ > 0; }
  int64_t ShortestLength(SequenceId id) const override {
    const auto draft = drafts_.find(id);
    return draft != drafts_.end() && draft->second.kept() ? draft->second.begin : Length(id);
  }
  void Truncate(SequenceId id, int64_t tokens) override {
    const int64_t length = Length(id);
    CheckWhole(id);
    CheckTruncation(id, length, tokens, ShortestLength(id));
    if (tokens == length) return;
    Draft& draft = drafts_.at(id);
    table_.ReplaceBlock(id, 0, draft.states);
    draft.states.clear();
    table_.Truncate(id, tokens);
    if (tokens > draft.begin) Repeat(id, draft, tokens - draft.begin);
  }

  void BeginStep(const Step& step) override {
    int64_t pages = 0;
    for (const StepSequence& part : step.sequences) {
      if (!Keeps(part)) continue;
      if (part.rows > room_) {
        throw InvalidArgument(
            "KV cache: sequence {} has {} drafted tokens in a step; the plan has room for {}",
            part.id, part.rows - 1, room_ - 1);
      }
      Length(part.id);  // throws for a sequence that does not exist
      Draft& draft = drafts_[part.id];
      if (draft.inputs.data() == nullptr) draft.inputs = device_.Allocate(InputBytes());
      if (!draft.kept()) pages += layout_.layers;
    }
    Begin(step, pages);
    for (const StepSequence& part : step.sequences) {
      if (!Keeps(part)) {
        Forget(part.id);
        continue;
      }
      Draft& draft = drafts_.at(part.id);
      if (GoesOn(draft, part)) continue;
      while (std::ssize(draft.states) < layout_.layers) draft.states.push_back(pool_.Take());
      draft.begin = part.past;
      draft.tokens = 0;
      draft.rows = part.rows;
    }
  }

  void Recur(Stream& stream, int64_t layer, const Step& step, const ops::GatedDeltaWeights& weights,
             const ops::GatedDeltaInputs& in, const MatrixView&, const MatrixView& out) override {
    LC_CHECK(layer >= 0 && layer < layout_.layers);
    const SectionScope section(stream, Section::kAttention);
    views_.clear();
    for (const StepSequence& part : step.sequences) {
      views_.push_back({.first_row = part.first_row,
                        .rows = part.rows,
                        .past = part.past,
                        .state = State(part.id, layer)});
      if (Keeps(part)) Keep(stream, layer, part, in);
    }
    weights_[static_cast<size_t>(layer)] = weights;
    ops::GatedDelta(stream, layout_.delta, weights, views_, in, out);
  }

  void EndStep(const Step& step) override {
    RecurrentCache::EndStep(step);
    for (const StepSequence& part : step.sequences) {
      if (Keeps(part)) drafts_.at(part.id).tokens += part.rows;
    }
  }

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

  bool Keeps(const StepSequence& part) const { return part.drafted && room_ > 0; }
  // Whether a step's tokens are kept behind those of the steps before.
  bool GoesOn(const Draft& draft, const StepSequence& part) const {
    return draft.kept() && part.rows == 1 && draft.rows == 1 && draft.tokens < room_;
  }
  void Forget(SequenceId id) {
    const auto draft = drafts_.find(id);
    if (draft == drafts_.end()) return;
    for (const PageId page : draft->second.states) pool_.DropReference(page);
    draft->second.states.clear();
  }

  float* State(SequenceId id, int64_t layer) const {
    return reinterpret_cast<float*>(table_.Lists(id)[layer][0]);
  }
  size_t InputBytes() const {
    return static_cast<size_t>(layout_.layers * room_ * InputFloats(layout_.delta)) * sizeof(float);
  }
  // A layer's kept inputs, without gates: they change no state.
  ops::GatedDeltaInputs Inputs(const Draft& draft, int64_t layer) const {
    const ops::GatedDeltaShape& shape = layout_.delta;
    float* next = draft.inputs.as<float>() + layer * room_ * InputFloats(shape);
    const auto take = [&](int64_t columns) {
      const MatrixView view = MatrixView::Of(next, room_, columns);
      next += room_ * columns;
      return view;
    };
    ops::GatedDeltaInputs inputs;
    inputs.qkv = take(shape.channels());
    inputs.rate = take(shape.value_heads);
    inputs.step = take(shape.value_heads);
    return inputs;
  }

  // Keeps a layer's state, unless an earlier step did, and its inputs, which are overwritten.
  void Keep(Stream& stream, int64_t layer, const StepSequence& part,
            const ops::GatedDeltaInputs& in) {
    const Draft& draft = drafts_.at(part.id);
    if (draft.tokens == 0 && part.past > 0) {
      constexpr int64_t kPiece = 16 << 10;  // floats
      const float* from = State(part.id, layer);
      auto* to = reinterpret_cast<float*>(pool_.data(draft.states[static_cast<size_t>(layer)]));
      const int64_t floats = layout_.delta.state_floats();
      AsCpu(stream).pool().ParallelFor(
          (floats + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end, int) {
            end = std::min(end * kPiece, floats);
            begin *= kPiece;
            std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin) * sizeof(float));
          });
    }
    const ops::GatedDeltaInputs kept = Inputs(draft, layer);
    for (const auto& [from, to] :
         {std::pair(in.qkv, kept.qkv), {in.rate, kept.rate}, {in.step, kept.step}}) {
      for (int64_t row = 0; row < part.rows; ++row) {
        std::memcpy(to.Row<float>(draft.tokens + row), from.Row<float>(part.first_row + row),
                    static_cast<size_t>(from.cols) * sizeof(float));
      }
    }
  }

  // Lets the first `rows` kept tokens pass through all layers again.
  void Repeat(SequenceId id, const Draft& draft, int64_t rows) {
    outputs_.resize(static_cast<size_t>(room_ * layout_.delta.width()));
    const auto out = MatrixView::Of(outputs_.data(), rows, layout_.delta.width());
    for (int64_t layer = 0; layer < layout_.layers; ++layer) {
      ops::GatedDeltaInputs in = Inputs(draft, layer);
      for (MatrixView* view : {&in.qkv, &in.rate, &in.step}) *view = view->Rows(0, rows);
      in.gate = out;  // any numbers: nobody reads the outputs
      const ops::GatedDeltaSequence sequence{
          .first_row = 0, .rows = rows, .past = draft.begin, .state = State(id, layer)};
      ops::GatedDelta(*stream_, layout_.delta, weights_[static_cast<size_t>(layer)], {&sequence, 1},
                      in, out);
    }
  }

  Device& device_;
  const std::unique_ptr<Stream> stream_;  // of Truncate()
  const int64_t room_;  // tokens that can be kept of a sequence; 0: none can be taken back
  std::unordered_map<SequenceId, Draft> drafts_;
  std::vector<ops::GatedDeltaWeights> weights_;  // [layers], of the last step
  std::vector<ops::GatedDeltaSequence> views_;   // sequences of the current step
  std::vector<float> outputs_;                   // scratch [room, width]
};

}  // namespace

std::unique_ptr<Cache> CreateCpuRecurrentCache(Device& device, const Layout& layout,
                                               uint64_t budget_bytes, int64_t draft_tokens) {
  return std::make_unique<CpuRecurrentCache>(device, layout, budget_bytes, draft_tokens);
}

uint64_t DraftScratchBytes(const Layout& layout, int64_t draft_tokens, int64_t sequences) {
  if (draft_tokens == 0) return 0;
  const int64_t row = sequences * layout.layers * InputFloats(layout.delta) + layout.delta.width();
  return static_cast<uint64_t>((draft_tokens + 1) * row) * sizeof(float);
}

}  // namespace litecache::kv

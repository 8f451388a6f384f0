#include "kv/recurrent/recurrent_drafts.h"

#include <utility>

#include "base/error.h"

namespace litecache::kv {
namespace {

// A token's inputs of a layer, as the projections give them.
int64_t InputFloats(const ops::GatedDeltaShape& shape) {
  return shape.channels() + 2 * shape.value_heads;
}

}  // namespace

RecurrentDrafts::RecurrentDrafts(Device& device, const Layout& layout, uint64_t budget_bytes,
                                 int64_t draft_tokens)
    : RecurrentCache(device, layout, budget_bytes, draft_tokens > 0 ? 2 : 1),
      room_(draft_tokens > 0 ? draft_tokens + 1 : 0),
      device_(device),
      weights_(static_cast<size_t>(layout.layers)) {}

void RecurrentDrafts::Release(SequenceId id) {
  RecurrentCache::Release(id);
  Forget(id);
  drafts_.erase(id);
}

TierBytes RecurrentDrafts::BytesHeld(std::span<const SequenceId> ids) const {
  TierBytes bytes = RecurrentCache::BytesHeld(ids);
  for (const SequenceId id : ids) {
    const auto draft = drafts_.find(id);
    if (draft != drafts_.end()) bytes.device += draft->second.states.size() * pool_.page_bytes();
  }
  return bytes;
}

int64_t RecurrentDrafts::ShortestLength(SequenceId id) const {
  const auto draft = drafts_.find(id);
  return draft != drafts_.end() && draft->second.kept() ? draft->second.begin : Length(id);
}

void RecurrentDrafts::Truncate(SequenceId id, int64_t tokens) {
  if (room_ == 0) return Cache::Truncate(id, tokens);  // throws
  const int64_t length = Length(id);
  CheckWhole(id);
  CheckTruncation(id, length, tokens, ShortestLength(id));
  if (tokens == length) return;
  Draft& draft = drafts_.at(id);
  table_.ReplaceBlock(id, 0, draft.states);
  draft.states.clear();
  table_.Truncate(id, tokens);
  const int64_t rows = tokens - draft.begin;
  if (rows == 0) return;
  const ops::GatedDeltaShape& shape = layout_.delta;
  if (outputs_.data() == nullptr) {
    outputs_ = device_.Allocate(static_cast<size_t>(room_ * shape.width()) * sizeof(float));
  }
  const MatrixView out = MatrixView::Of(outputs_.as<float>(), rows, shape.width());
  for (int64_t layer = 0; layer < layout_.layers; ++layer) {
    ops::GatedDeltaInputs in = Inputs(draft, layer, 0, rows);
    in.gate = out;  // any numbers
    Repeat(id, layer, rows, draft.begin, weights_[static_cast<size_t>(layer)], in, out);
  }
  FinishRepeating();
}

void RecurrentDrafts::BeginStep(const Step& step) {
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
    if (draft.inputs.data() == nullptr) {
      draft.inputs = device_.Allocate(
          static_cast<size_t>(layout_.layers * room_ * InputFloats(layout_.delta)) * sizeof(float));
    }
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

void RecurrentDrafts::EndStep(const Step& step) {
  RecurrentCache::EndStep(step);
  for (const StepSequence& part : step.sequences) {
    if (Keeps(part)) drafts_.at(part.id).tokens += part.rows;
  }
}

void RecurrentDrafts::Forget(SequenceId id) {
  const auto draft = drafts_.find(id);
  if (draft == drafts_.end()) return;
  for (const PageId page : draft->second.states) pool_.DropReference(page);
  draft->second.states.clear();
}

float* RecurrentDrafts::State(SequenceId id, int64_t layer) const {
  return reinterpret_cast<float*>(table_.Lists(id)[layer][0]);
}

ops::GatedDeltaInputs RecurrentDrafts::Inputs(const Draft& draft, int64_t layer, int64_t begin,
                                              int64_t rows) const {
  const ops::GatedDeltaShape& shape = layout_.delta;
  float* next = draft.inputs.as<float>() + layer * room_ * InputFloats(shape);
  const auto take = [&](int64_t columns) {
    const MatrixView view = MatrixView::Of(next, room_, columns).Rows(begin, rows);
    next += room_ * columns;
    return view;
  };
  ops::GatedDeltaInputs inputs;
  inputs.qkv = take(shape.channels());
  inputs.rate = take(shape.value_heads);
  inputs.step = take(shape.value_heads);
  return inputs;
}

void RecurrentDrafts::Keep(Stream& stream, int64_t layer, const StepSequence& part,
                           const ops::GatedDeltaWeights& weights, const ops::GatedDeltaInputs& in) {
  weights_[static_cast<size_t>(layer)] = weights;
  const Draft& draft = drafts_.at(part.id);
  if (draft.tokens == 0 && part.past > 0) {
    auto* kept = reinterpret_cast<float*>(pool_.data(draft.states[static_cast<size_t>(layer)]));
    const int64_t floats = layout_.delta.state_floats();
    Copy(stream, MatrixView::Of(State(part.id, layer), 1, floats), MatrixView::Of(kept, 1, floats));
  }
  const ops::GatedDeltaInputs kept = Inputs(draft, layer, draft.tokens, part.rows);
  for (const auto& [from, to] :
       {std::pair(in.qkv, kept.qkv), {in.rate, kept.rate}, {in.step, kept.step}}) {
    Copy(stream, from.Rows(part.first_row, part.rows), to);
  }
}

uint64_t DraftScratchBytes(const Layout& layout, int64_t draft_tokens, int64_t sequences,
                           DeviceType device) {
  if (draft_tokens == 0) return 0;
  const ops::GatedDeltaShape& shape = layout.delta;
  const int64_t row = sequences * layout.layers * InputFloats(shape) + shape.width() +
                      (device == DeviceType::kCuda ? shape.channels() : 0);
  return static_cast<uint64_t>((draft_tokens + 1) * row) * sizeof(float);
}

}  // namespace litecache::kv

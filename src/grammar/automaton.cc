#include "grammar/automaton.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace litecache::grammar {
namespace {

uint32_t HeightOf(const State& state, const std::vector<State>& states) {
  if (state.returns) return 0;
  uint32_t height = kUnlimited;
  for (const ByteEdge& edge : state.bytes) height = std::min(height, states[edge.target].height);
  for (const StateId target : state.jumps) height = std::min(height, states[target].height);
  for (const CallEdge& call : state.calls) {
    const uint32_t callee = states[call.callee].height;
    if (callee == kUnlimited) continue;
    height = std::min(height, std::max(callee + 1, states[call.next].height));
  }
  return height;
}

// Heights fall from kUnlimited until nothing changes: each change looks again at what leads there.
void ComputeHeights(std::vector<State>* states) {
  std::vector<std::vector<StateId>> before(states->size());
  std::vector<StateId> work;
  for (StateId i = 0; i < states->size(); ++i) {
    const State& state = (*states)[i];
    for (const ByteEdge& edge : state.bytes) before[edge.target].push_back(i);
    for (const StateId target : state.jumps) before[target].push_back(i);
    for (const CallEdge& call : state.calls) {
      before[call.callee].push_back(i);
      before[call.next].push_back(i);
    }
    if (state.returns) work.push_back(i);
  }
  while (!work.empty()) {
    const StateId id = work.back();
    work.pop_back();
    State& state = (*states)[id];
    const uint32_t height = HeightOf(state, *states);
    if (height >= state.height) continue;
    state.height = height;
    work.insert(work.end(), before[id].begin(), before[id].end());
  }
}

}  // namespace

StateId AutomatonBuilder::Add() {
  if (states_.size() >= kMaxStates) {
    throw InvalidArgument(
        "the schema is too large: it needs more than {} states (long maxLength, maxItems and "
        "repetitions in patterns count one a step)",
        kMaxStates);
  }
  states_.emplace_back();
  return static_cast<StateId>(states_.size() - 1);
}

StateId AutomatonBuilder::AddEnd() {
  const StateId state = Add();
  states_[state].returns = true;
  return state;
}

void AutomatonBuilder::Literal(StateId from, std::string_view text, StateId to) {
  if (text.empty()) return Jump(from, to);
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const StateId next = Add();
    Byte(from, text[i], next);
    from = next;
  }
  Byte(from, text.back(), to);
}

StateId AutomatonBuilder::Literal(StateId from, std::string_view text) {
  const StateId to = Add();
  Literal(from, text, to);
  return to;
}

Automaton AutomatonBuilder::Finish(StateId start) {
  ComputeHeights(&states_);
  if (states_[start].height == kUnlimited) {
    throw InvalidArgument("no value of finite size satisfies the schema");
  }
  return {std::move(states_), start};
}

}  // namespace litecache::grammar

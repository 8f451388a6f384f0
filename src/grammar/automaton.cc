#include "grammar/automaton.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "base/error.h"
#include "base/work_limit.h"

namespace litecache::grammar {
namespace {

// The height of one state determines that of another: the other has an edge to it, or a call that
// enters it or continues at it.
struct Dependent {
  StateId state;
  const CallEdge* call;  // null: an edge
};

// Lowest heights first, as in Dijkstra's algorithm: a state is settled when the first of its
// alternatives is.
void ComputeHeights(std::vector<State>* states) {
  std::vector<std::vector<Dependent>> dependents(states->size());
  using Candidate = std::pair<uint32_t, StateId>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> open;
  for (StateId i = 0; i < states->size(); ++i) {
    const State& state = (*states)[i];
    for (const ByteEdge& edge : state.bytes) dependents[edge.target].push_back({i, nullptr});
    for (const StateId target : state.jumps) dependents[target].push_back({i, nullptr});
    for (const CallEdge& call : state.calls) {
      dependents[call.callee].push_back({i, &call});
      if (call.next != call.callee) dependents[call.next].push_back({i, &call});
    }
    if (state.returns) open.emplace(0, i);
  }
  while (!open.empty()) {
    const auto [height, id] = open.top();
    open.pop();
    if ((*states)[id].height != kUnlimited) continue;
    (*states)[id].height = height;
    for (const auto& [state, call] : dependents[id]) {
      CheckWork();
      if ((*states)[state].height != kUnlimited) continue;
      if (call == nullptr) {
        open.emplace(height, state);
        continue;
      }
      const uint32_t callee = (*states)[call->callee].height;
      const uint32_t next = (*states)[call->next].height;
      if (callee != kUnlimited && next != kUnlimited) {
        open.emplace(std::max(callee + 1, next), state);
      }
    }
  }
}

}  // namespace

StateId AutomatonBuilder::Add() {
  CheckWork();
  if (states_.size() >= kMaxStates) {
    throw InvalidArgument(
        "the schema or grammar is too large: it needs more than {} states (long maxLength, "
        "maxItems "
        "and repetitions count one a step)",
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

void AutomatonBuilder::Literals(StateId from, const std::set<std::string>& texts, StateId to) {
  // Texts are sorted, so each one shares a prefix with the one before.
  std::string_view before;
  std::vector<StateId> states = {from};  // after each byte of `before` except the last
  for (const std::string& text : texts) {
    const size_t common = static_cast<size_t>(
        std::mismatch(before.begin(), before.end(), text.begin(), text.end()).first -
        before.begin());
    states.resize(std::min(common + 1, states.size()));
    while (states.size() < text.size()) {
      const StateId next = Add();
      Byte(states.back(), text[states.size() - 1], next);
      states.push_back(next);
    }
    if (text.empty()) {
      Jump(from, to);
    } else {
      Byte(states.back(), text.back(), to);
    }
    before = text;
  }
}

StateId AutomatonBuilder::Literal(StateId from, std::string_view text) {
  const StateId to = Add();
  Literal(from, text, to);
  return to;
}

void AutomatonBuilder::Through(StateId from, std::string_view text, StateId to) {
  // Knuth, Morris and Pratt: a state for every beginning of the text that has just been read.
  std::vector<StateId> states = {Add()};
  Jump(from, states[0]);
  for (size_t i = 1; i < text.size(); ++i) states.push_back(Add());
  states.push_back(to);
  for (size_t read = 0; read < text.size(); ++read) {
    const auto next = [&](int byte) {
      std::string behind(text.substr(0, read));
      behind += static_cast<char>(byte);
      while (!text.starts_with(behind)) behind.erase(0, 1);
      return states[behind.size()];
    };
    // Without the byte of control tokens (vocabulary.h).
    for (int low = 0; low < 0xFF;) {
      int end = low + 1;
      while (end < 0xFF && next(end) == next(low)) ++end;
      Bytes(states[read], static_cast<uint8_t>(low), static_cast<uint8_t>(end - 1), next(low));
      low = end;
    }
  }
}

Automaton AutomatonBuilder::Finish(StateId start) {
  for (State& state : states_) state.height = kUnlimited;
  ComputeHeights(&states_);
  if (states_[start].height == kUnlimited) {
    throw InvalidArgument("no value of finite size satisfies the schema or grammar");
  }
  return {std::move(states_), start};
}

}  // namespace litecache::grammar

#include "grammar/left_recursion.h"

#include <algorithm>
#include <unordered_map>

#include "base/work_limit.h"

namespace litecache::grammar {
namespace {

// States from which the end of their call can be reached without a byte.
std::vector<bool> Silent(const Automaton& automaton) {
  // What follows from a state's being silent: another one's, through a jump, or through a call
  // where both the callee and what comes behind it are.
  struct Dependent {
    StateId state;
    const CallEdge* call;  // null: a jump
  };
  std::vector<std::vector<Dependent>> dependents(automaton.states.size());
  std::vector<bool> silent(automaton.states.size());
  std::vector<StateId> work;
  for (StateId i = 0; i < automaton.states.size(); ++i) {
    const State& state = automaton.states[i];
    for (const StateId target : state.jumps) dependents[target].push_back({i, nullptr});
    for (const CallEdge& call : state.calls) {
      dependents[call.callee].push_back({i, &call});
      dependents[call.next].push_back({i, &call});
    }
    if (state.returns) work.push_back(i);
    silent[i] = state.returns;
  }
  while (!work.empty()) {
    const StateId done = work.back();
    work.pop_back();
    for (const auto& [state, call] : dependents[done]) {
      CheckWork();
      if (silent[state]) continue;
      if (call != nullptr && !(silent[call->callee] && silent[call->next])) continue;
      silent[state] = true;
      work.push_back(state);
    }
  }
  return silent;
}

}  // namespace

std::optional<size_t> FindLeftRecursion(const Automaton& automaton,
                                        const std::vector<StateId>& callees) {
  const std::vector<bool> silent = Silent(automaton);
  std::unordered_map<StateId, size_t> starts;
  for (size_t i = 0; i < callees.size(); ++i) starts.emplace(callees[i], i);
  // Which callees another one may begin with, and how many may begin with each.
  std::vector<std::vector<size_t>> begins(callees.size());
  std::vector<size_t> callers(callees.size());
  std::vector<bool> seen(automaton.states.size());
  for (size_t i = 0; i < callees.size(); ++i) {
    std::vector<StateId> work = {callees[i]};
    const auto call = [&](size_t callee) {
      begins[i].push_back(callee);
      ++callers[callee];
    };
    const auto visit = [&](StateId state) {
      const auto start = starts.find(state);
      if (start != starts.end()) return call(start->second);
      if (!seen[state]) work.push_back(state);
      seen[state] = true;
    };
    while (!work.empty()) {
      CheckWork();
      const State& state = automaton.states[work.back()];
      work.pop_back();
      for (const StateId target : state.jumps) visit(target);
      for (const CallEdge& edge : state.calls) {
        const auto start = starts.find(edge.callee);
        if (start != starts.end()) call(start->second);
        if (silent[edge.callee]) visit(edge.next);
      }
    }
  }
  // Kahn's algorithm: what is left over goes around in circles.
  std::vector<size_t> work;
  for (size_t i = 0; i < callees.size(); ++i) {
    if (callers[i] == 0) work.push_back(i);
  }
  while (!work.empty()) {
    const size_t i = work.back();
    work.pop_back();
    for (const size_t callee : begins[i]) {
      CheckWork();
      if (--callers[callee] == 0) work.push_back(callee);
    }
  }
  const auto left = std::ranges::find_if(callers, [](size_t count) { return count > 0; });
  if (left == callers.end()) return std::nullopt;
  return static_cast<size_t>(left - callers.begin());
}

}  // namespace litecache::grammar

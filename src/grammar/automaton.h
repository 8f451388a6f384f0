// A nondeterministic automaton over bytes with calls; grammars are compiled to it.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace litecache::grammar {

using StateId = uint32_t;

struct ByteEdge {
  uint8_t low = 0;
  uint8_t high = 0;  // inclusive
  StateId target = 0;
};

// Runs the callee until one of its states returns, then goes on at `next`.
struct CallEdge {
  StateId callee = 0;
  StateId next = 0;
};

inline constexpr uint32_t kUnlimited = std::numeric_limits<uint32_t>::max();

struct State {
  std::vector<ByteEdge> bytes;
  std::vector<StateId> jumps;  // edges without a byte
  std::vector<CallEdge> calls;
  bool returns = false;  // ends the call, or the whole text
  // Inside a JSON string: the number of further characters without escapes that may follow,
  // whatever they are. Allows whole tokens without following their bytes.
  uint32_t plain = 0;
  // The number of calls that must still be nested before this call can end, on the path that needs
  // fewest; kUnlimited: no text of finite length reaches the end.
  uint32_t height = kUnlimited;
};

struct Automaton {
  std::vector<State> states;
  StateId start = 0;
};

// Builds an automaton. Throws InvalidArgument if it grows beyond kMaxStates.
class AutomatonBuilder {
 public:
  static constexpr size_t kMaxStates = 200'000;

  // State 0 is reserved, so that a StateId of 0 can mean none.
  AutomatonBuilder() { states_.emplace_back(); }
  // Goes on with an automaton that is finished.
  explicit AutomatonBuilder(std::vector<State> states) : states_(std::move(states)) {}

  StateId Add();
  // A state that ends its call.
  StateId AddEnd();
  void Bytes(StateId from, uint8_t low, uint8_t high, StateId to) {
    states_[from].bytes.push_back({low, high, to});
  }
  void Byte(StateId from, char byte, StateId to) {
    Bytes(from, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), to);
  }
  void Jump(StateId from, StateId to) { states_[from].jumps.push_back(to); }
  void Call(StateId from, StateId callee, StateId to) {
    states_[from].calls.push_back({callee, to});
  }
  void Literal(StateId from, std::string_view text, StateId to);
  // Accepts any of the texts. Texts share the states of their common prefixes.
  void Literals(StateId from, const std::set<std::string>& texts, StateId to);
  // Returns the state after the text.
  StateId Literal(StateId from, std::string_view text);
  // Any bytes of UTF-8 up to the end of the first `text` in them, which is not empty.
  void Through(StateId from, std::string_view text, StateId to);
  void SetPlain(StateId state, uint32_t characters) { states_[state].plain = characters; }

  // Computes State::height. Throws InvalidArgument if no text is accepted.
  Automaton Finish(StateId start);

 private:
  std::vector<State> states_;
};

}  // namespace litecache::grammar

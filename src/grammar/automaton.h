// A nondeterministic automaton over bytes with calls: what a grammar is compiled to.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::grammar {

using StateId = uint32_t;

struct ByteEdge {
  uint8_t low = 0;
  uint8_t high = 0;  // included
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
  std::vector<StateId> jumps;  // without a byte
  std::vector<CallEdge> calls;
  bool returns = false;  // ends the call, or the whole text
  // Inside of a JSON string: this many further characters that need no escape may follow, whatever
  // they are. Lets whole tokens be allowed without following their bytes.
  uint32_t plain = 0;
  // Calls that must still be nested from here to the call's end, on the way that needs fewest;
  // kUnlimited: no text of finite length leads there.
  uint32_t height = kUnlimited;
};

struct Automaton {
  std::vector<State> states;
  StateId start = 0;
};

// Makes an automaton. Throws InvalidArgument where it grows beyond kMaxStates.
class AutomatonBuilder {
 public:
  static constexpr size_t kMaxStates = 200'000;

  // State 0 is nowhere: a StateId of 0 can mean none.
  AutomatonBuilder() { states_.emplace_back(); }

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
  // One of the texts. They share the states of what they have in common at their beginnings.
  void Literals(StateId from, const std::set<std::string>& texts, StateId to);
  // The state behind the text.
  StateId Literal(StateId from, std::string_view text);
  void SetPlain(StateId state, uint32_t characters) { states_[state].plain = characters; }

  // Computes State::height. Throws InvalidArgument where no text is accepted.
  Automaton Finish(StateId start);

 private:
  std::vector<State> states_;
};

}  // namespace litecache::grammar

#include "grammar/gbnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/work_limit.h"
#include "grammar/characters.h"
#include "grammar/left_recursion.h"
#include "tokenizer/utf8.h"

namespace litecache::grammar {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr size_t kMaxNesting = 100;
constexpr uint32_t kMaxGbnfRepeat = 10'000;

// A rule or a group: a state to call.
struct Callee {
  StateId start = 0;
  StateId end = 0;
  std::string rule;  // its name, or that of the rule it is in
  size_t line = 0;   // of its definition; 0: it has none yet
};

class Compiler {
 public:
  explicit Compiler(std::string_view source) : source_(source) {
    if (source.size() > kMaxBytes) {
      throw InvalidArgument("a grammar of {} bytes is too large: {} are the most", source.size(),
                            kMaxBytes);
    }
    if (!tokenizer::IsValidUtf8(source)) throw InvalidArgument("the grammar is not valid UTF-8");
  }

  Automaton Compile() {
    SkipSpace(true);
    while (!AtEnd()) Rule();
    for (const auto& [name, index] : rules_) {
      if (callees_[index].line == 0) {
        throw InvalidArgument("the grammar has no rule '{}'", name);
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) throw InvalidArgument("the grammar has no rule 'root'");
    Automaton automaton = builder_.Finish(callees_[root->second].start);
    std::vector<StateId> starts;
    for (const Callee& callee : callees_) starts.push_back(callee.start);
    if (const auto around = FindLeftRecursion(automaton, starts)) {
      throw InvalidArgument(
          "the grammar is left-recursive around its rule '{}', which is not supported: write * or "
          "+",
          callees_[*around].rule);
    }
    return automaton;
  }

 private:
  // What is being written, from the innermost group out to the rule. A call that stands last in its
  // alternative becomes a jump, so that lists that recurse at their end do not nest: it waits in
  // `last` until it is known whether something follows.
  struct Open {
    size_t callee = 0;
    StateId at = 0;
    std::optional<StateId> last;
    bool last_is_optional = false;
  };
  // Literals, classes and states to call.
  struct Symbol {
    std::optional<StateId> callee;
    CharacterSet characters;
    std::optional<std::string> literal;
  };

  bool AtEnd() const { return at_ == source_.size(); }
  char Peek() const { return source_[at_]; }
  bool Take(char c) {
    if (AtEnd() || Peek() != c) return false;
    ++at_;
    return true;
  }
  uint32_t Next() {
    if (AtEnd()) Malformed("it ends too early");
    return tokenizer::NextCodePoint(source_, &at_);
  }
  size_t Line() {
    while (counted_ < at_) line_ += source_[counted_++] == '\n';
    return line_;
  }
  [[noreturn]] void Malformed(std::string_view why) {
    throw InvalidArgument("line {} of the grammar: {}", Line(), why);
  }

  void SkipSpace(bool lines) {
    while (!AtEnd()) {
      CheckWork();
      if (Peek() == '#') {
        while (!AtEnd() && Peek() != '\n' && Peek() != '\r') ++at_;
      } else if (Peek() == ' ' || Peek() == '\t' || (lines && (Peek() == '\n' || Peek() == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  static bool IsNameByte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }
  std::string Name() {
    const size_t begin = at_;
    while (!AtEnd() && IsNameByte(Peek())) ++at_;
    if (begin == at_) Malformed("a name, a literal, a class or a group is expected");
    return std::string(source_.substr(begin, at_ - begin));
  }

  size_t AddCallee(const std::string& rule) {
    const StateId start = builder_.Add();
    callees_.push_back({start, builder_.AddEnd(), rule, 0});
    return callees_.size() - 1;
  }
  size_t RuleOf(const std::string& name) {
    const auto [found, added] = rules_.try_emplace(name, 0);
    if (added) found->second = AddCallee(name);
    return found->second;
  }

  void Rule() {
    const size_t line = Line();
    const std::string name = Name();
    SkipSpace(false);
    if (!source_.substr(at_).starts_with("::=")) Malformed("::= is expected behind a rule's name");
    at_ += 3;
    SkipSpace(true);
    const size_t rule = RuleOf(name);
    if (callees_[rule].line != 0) {
      Malformed(
          fmt::format("the rule '{}' is there already, in line {}", name, callees_[rule].line));
    }
    callees_[rule].line = line;
    std::vector<Open> open = {{rule, callees_[rule].start, {}, false}};
    while (true) {
      SkipSpace(open.size() > 1);
      if (AtEnd() || Peek() == '\n' || Peek() == '\r') break;
      if (Take('|')) {
        EndAlternative(&open.back());
        open.back().at = callees_[open.back().callee].start;
        SkipSpace(true);
      } else if (Take('(')) {
        if (open.size() > kMaxNesting) Malformed("groups are nested too deep");
        const size_t group = AddCallee(name);
        callees_[group].line = line;
        open.push_back({group, callees_[group].start, {}, false});
      } else if (Take(')')) {
        if (open.size() == 1) Malformed("there is a ) without its (");
        EndAlternative(&open.back());
        const StateId group = callees_[open.back().callee].start;
        open.pop_back();
        Write({group, {}, {}}, &open.back());
      } else {
        Write(ReadSymbol(), &open.back());
      }
    }
    if (open.size() > 1) Malformed("a ( lacks its )");
    EndAlternative(&open.back());
    SkipSpace(true);
  }

  Symbol ReadSymbol() {
    if (Take('"')) {
      std::string literal;
      while (!Take('"')) tokenizer::AppendUtf8(Character(), &literal);
      return {{}, {}, std::move(literal)};
    }
    if (Take('[')) return {{}, Class(), {}};
    if (Take('.')) return {{}, CharacterSet::All(), {}};
    if (Peek() == '<' || Peek() == '!') {
      throw Unsupported("line {} of the grammar: tokens are not supported", Line());
    }
    if (std::string_view("*+?{").find(Peek()) != std::string_view::npos) {
      Malformed("there is nothing to repeat");
    }
    return {callees_[RuleOf(Name())].start, {}, {}};
  }

  // One character of a literal or class; \ escapes.
  uint32_t Character() {
    const uint32_t c = Next();
    if (c != '\\') return c;
    switch (const uint32_t escaped = Next()) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return Hex(2);
      case 'u':
        return Hex(4);
      case 'U':
        return Hex(8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return escaped;
      default:
        Malformed(
            "there is no such escape: \\n \\r \\t \\xHH \\uHHHH \\UHHHHHHHH \\\\ \\\" \\[ \\]");
    }
  }
  uint32_t Hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const uint32_t c = Next();
      const uint32_t lower = c | 0x20;
      if (c >= '0' && c <= '9') {
        value = value * 16 + (c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + (lower - 'a' + 10);
      } else {
        Malformed("hexadecimal digits are expected");
      }
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      Malformed("an escape is no Unicode character");
    }
    return value;
  }

  CharacterSet Class() {
    const bool negated = Take('^');
    CharacterSet set;
    while (!Take(']')) {
      const uint32_t first = Character();
      uint32_t last = first;
      if (at_ + 1 < source_.size() && Peek() == '-' && source_[at_ + 1] != ']') {
        ++at_;
        last = Character();
        if (last < first) Malformed("a range in [] is out of order");
      }
      set.Add(first, last);
    }
    return negated ? set.Complement() : set;
  }

  // What a repetition behind a symbol says; {1, 1} without one.
  std::pair<uint32_t, uint32_t> Counts() {
    if (Take('*')) return {0, kUnlimited};
    if (Take('+')) return {1, kUnlimited};
    if (Take('?')) return {0, 1};
    if (!Take('{')) return {1, 1};
    const auto count = [&] {
      SkipSpace(false);
      std::optional<uint32_t> value;
      while (!AtEnd() && Peek() >= '0' && Peek() <= '9') {
        value = value.value_or(0) * 10 + static_cast<uint32_t>(source_[at_++] - '0');
        if (*value > kMaxGbnfRepeat) {
          throw Unsupported("line {} of the grammar: more than {} repetitions are not supported",
                            Line(), kMaxGbnfRepeat);
        }
      }
      SkipSpace(false);
      return value;
    };
    const auto min = count();
    auto max = min;
    if (Take(',')) max = count().value_or(kUnlimited);
    if (!Take('}') || (!min && !max)) Malformed("{m}, {m,} or {m,n} is expected");
    if (*max < min.value_or(0)) Malformed("a repetition's bounds are out of order");
    return {min.value_or(0), *max};
  }

  void WriteOnce(const Symbol& symbol, StateId from, StateId to) {
    if (symbol.callee) {
      builder_.Call(from, *symbol.callee, to);
    } else if (symbol.literal) {
      builder_.Literal(from, *symbol.literal, to);
    } else {
      characters_.One(from, symbol.characters, to);
    }
  }

  void Write(Symbol symbol, Open* open) {
    Flush(open);
    SkipSpace(false);
    const auto [min, max] = Counts();
    if ((min > 1 || (max > 1 && max != kUnlimited)) &&
        symbol.characters.ranges().size() > 4) {  // written once, and called
      const StateId start = builder_.Add();
      characters_.One(start, symbol.characters, builder_.AddEnd());
      symbol.callee = start;
    }
    if (symbol.callee && max == 1) {
      open->last = symbol.callee;
      open->last_is_optional = min == 0;
      return;
    }
    for (uint32_t i = 0; i < min; ++i) {
      const StateId next = builder_.Add();
      WriteOnce(symbol, open->at, next);
      open->at = next;
    }
    if (max == kUnlimited) {
      const StateId loop = builder_.Add(), after = builder_.Add();
      builder_.Jump(open->at, loop);
      WriteOnce(symbol, loop, after);
      builder_.Jump(after, loop);
      open->at = loop;
    } else if (max > min) {
      const StateId end = builder_.Add();
      for (uint32_t i = min; i < max; ++i) {
        const StateId next = builder_.Add();
        builder_.Jump(open->at, end);
        WriteOnce(symbol, open->at, next);
        open->at = next;
      }
      builder_.Jump(open->at, end);
      open->at = end;
    }
  }

  void Flush(Open* open) {
    if (!open->last) return;
    const StateId next = builder_.Add();
    builder_.Call(open->at, *std::exchange(open->last, std::nullopt), next);
    if (open->last_is_optional) builder_.Jump(open->at, next);
    open->at = next;
  }

  void EndAlternative(Open* open) {
    const bool calls = open->last.has_value();
    if (calls) builder_.Jump(open->at, *std::exchange(open->last, std::nullopt));
    if (!calls || open->last_is_optional) {
      builder_.Jump(open->at, callees_[open->callee].end);
    }
  }

  const std::string_view source_;
  size_t at_ = 0;
  size_t counted_ = 0, line_ = 1;
  AutomatonBuilder builder_;
  CharacterWriter characters_{&builder_, CharacterWriter::kPlain};
  std::vector<Callee> callees_;
  std::map<std::string, size_t> rules_;  // of callees_
};

}  // namespace

Automaton CompileGbnf(std::string_view grammar) { return Compiler(grammar).Compile(); }

}  // namespace litecache::grammar

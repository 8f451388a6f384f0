// Grammars in GBNF.
#include "grammar/gbnf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <regex>
#include <set>

#include "base/work_limit.h"
#include "expect_error.h"
#include "grammar/grammar.h"
#include "grammar/grammar_testing.h"
#include "test_seed.h"
#include "tokenizer/utf8.h"

namespace litecache::grammar {
namespace {

using ::testing::HasSubstr;
using testing::TestRandom;

std::shared_ptr<Grammar> Gbnf(std::string_view source) {
  return Grammar::OfGbnf(source, ByteVocabulary());
}

TEST(Gbnf, AsItsExamplesWriteIt) {
  const auto chess = Gbnf(R"(# One game.
root   ::= (
    # white and black
    "1. " move " " move "\n"
    ([1-9] [0-9]? ". " move " " move "\n")*
)
move   ::= (pawn | piece | castle) [+#]?

pawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
piece  ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
castle ::= "O-O" "-O"?)");
  EXPECT_TRUE(Accepts(*chess, "1. e4 e5\n2. Nf3 Nc6\n10. O-O-O exd4+\n"));
  EXPECT_FALSE(Accepts(*chess, "1. e4 e5"));
  EXPECT_FALSE(Accepts(*chess, "1. e9 e5\n"));
  const auto json = Gbnf(R"(
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
)");
  EXPECT_TRUE(Accepts(*json, R"({"a": [1, -2.5e+3, true, "x\né", {}],
 "b": null})"));
  EXPECT_FALSE(Accepts(*json, R"({"a": 01})"));
  EXPECT_FALSE(Accepts(*json, R"({"a" 1})"));
  const auto sums =
      Gbnf("root ::= sum \"=\"\nsum ::= term ([-+] term)*\nterm ::= [0-9]+ | \"(\" sum \")\"\n");
  EXPECT_TRUE(Accepts(*sums, "1+(2-(30+4))="));
  EXPECT_FALSE(Accepts(*sums, "1+(2-(30+4)="));
  const auto any = Gbnf("root ::= .{2} \"\\u20AC\" \"\\U0001F600\" \"\\x41\"");
  EXPECT_TRUE(Accepts(*any, "é\n€😀A"));
}

// Lists that recurse at their end do not nest: they may be longer than calls may nest.
TEST(Gbnf, RecursionAtTheEndHasNoBound) {
  std::string text = "a";
  for (int i = 0; i < 5000; ++i) text += ",a";
  for (const char* source :
       {"root ::= \"a\" | \"a,\" root", "root ::= \"a\" (\",\" root)?",
        "root ::= item\nitem ::= \"a\" rest\nrest ::= \",\" item |", "root ::= \"a\" (\",a\")*"}) {
    EXPECT_TRUE(Accepts(*Gbnf(source), text)) << source;
    EXPECT_FALSE(Accepts(*Gbnf(source), text + ",")) << source;
  }
}

TEST(Gbnf, WrongGrammarsAreNamed) {
  const auto expect = [](std::string_view source, const char* part) {
    try {
      Gbnf(source);
      ADD_FAILURE() << source << " was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(part)) << source;
    }
  };
  expect("", "no rule 'root'");
  expect("start ::= \"a\"", "no rule 'root'");
  expect("root ::= \"a\" other", "no rule 'other'");
  expect("root ::= \"a\"\nroot ::= \"b\"", "line 2 of the grammar: the rule 'root' is there");
  expect("root = \"a\"", "::=");
  expect("root ::= \"a", "too early");
  expect("root ::= [a", "too early");
  expect("root ::= [b-a]", "out of order");
  expect("root ::= (\"a\"", "lacks its )");
  expect("root ::= \"a\")", "without its (");
  expect("root ::= *", "nothing to repeat");
  expect("root ::= \"a\"{3,2}", "out of order");
  expect("root ::= \"a\"{x}", "{m,n}");
  expect("root ::= \"a\"{99999}", "repetitions");
  expect("root ::= \"\\q\"", "escape");
  expect("root ::= \"\\uD800\"", "Unicode");
  expect("root ::= <[1000]>", "tokens");
  expect("root ::= \xFF", "UTF-8");
  expect("root ::= root \"a\" | \"a\"", "left-recursive around its rule 'root'");
  expect("root ::= \"x\" a\na ::= b? a2\na2 ::= a \"y\" | \"z\"\nb ::= \"b\"", "left-recursive");
  expect("root ::= \"a\" root", "no value of finite size");
  expect("root ::= " + std::string(200, '('), "nested too deep");
  expect("root ::= " + std::string(1 << 21, ' '), "too large");
  expect(
      "root ::= a{10000}\na ::= b{10000}\nb ::= \"0123456789\"{10000}\nc ::= \"0123456789\"{10000}",
      "too large");
}

// Grammars whose compilation or whose first mask could take long are refused or done in time.
TEST(Gbnf, HostileGrammarsTakeBoundedTime) {
  const WorkLimit limit(std::chrono::seconds(10), [] { return false; });
  std::string chain = "root ::= r0\n", wide = "root ::= ", deep = "root ::= ";
  for (int i = 0; i < 20000; ++i) {
    chain += fmt::format("r{} ::= r{}?\n", i, i + 1);
    wide += fmt::format("w{} | ", i % 5000);
  }
  chain += "r20000 ::= \"a\"";
  wide += "\"a\"\n";
  for (int i = 0; i < 5000; ++i) wide += fmt::format("w{} ::= \"a\"? w{}\n", i, (i + 1) % 5000);
  for (int i = 0; i < 90; ++i) deep += "(\"a\"? ";
  deep += std::string(90, ')') + "{50}";
  for (const std::string& source : {chain, wide, deep}) {
    try {
      Accepts(*Gbnf(source), "aaaa");
    } catch (const Error&) {  // refused is fine, too
    }
  }
  // Of the many ways to the first character none is found.
  std::string doubled = "root ::= r0\n";
  for (int i = 0; i < 2000; ++i) doubled += fmt::format("r{} ::= r{}? r{}?\n", i, i + 1, i + 1);
  EXPECT_THROW(Gbnf(doubled + "r2000 ::= \"a\"")->NewConstraint(), Unsupported);
}

// A grammar at random, and whether a text is one of it, found out in the simplest way. Rules call
// later ones anywhere, and themselves at the end of an alternative: where rules of two letters nest
// in themselves, there soon are more readings than a place keeps.
class RandomGrammar {
 public:
  explicit RandomGrammar(std::mt19937_64& random) : random_(random) {
    const size_t rules = 1 + random_() % 3;
    for (size_t i = 0; i < rules; ++i) names_.push_back(i == 0 ? "root" : fmt::format("r-{}", i));
    while (rules_.size() < rules) {
      Node rule = Choice(2);
      for (Node& alternative : rule.parts) {
        if (random_() % 4 != 0) continue;
        alternative.parts.push_back(
            {.kind = Node::kRule, .rule = rules_.size() + random_() % (rules - rules_.size())});
      }
      rules_.push_back(std::move(rule));
    }
  }

  std::string Source() const {
    std::string source;
    for (size_t i = 0; i < rules_.size(); ++i) {
      source += names_[i] + " ::= " + Print(rules_[i]) + "\n";
    }
    return source;
  }

  // Nothing: it is left-recursive.
  std::optional<bool> Accepts(const std::string& text) {
    text_ = text;
    known_.clear();
    open_.clear();
    left_recursive_ = false;
    const std::set<size_t> ends = Ends(rules_[0], 0);
    if (left_recursive_) return std::nullopt;
    return ends.contains(text.size());
  }

 private:
  struct Node {
    enum { kLiteral, kClass, kRule, kSequence, kChoice } kind = kLiteral;
    std::string text;  // of a literal, or the characters of a class
    size_t rule = 0;
    std::vector<Node> parts;
    int min = 1, max = 1;  // -1: any number
  };

  Node Choice(int depth) {
    Node node{.kind = Node::kChoice};
    for (size_t n = 1 + random_() % 3; n > 0; --n) {
      Node sequence{.kind = Node::kSequence};
      for (size_t k = random_() % 4; k > 0; --k) sequence.parts.push_back(Symbol(depth));
      node.parts.push_back(std::move(sequence));
    }
    return node;
  }
  Node Symbol(int depth) {
    Node node;
    switch (random_() % 5) {
      case 0:
      case 1:
        for (size_t n = 1 + random_() % 2; n > 0; --n) node.text += "ab"[random_() % 2];
        break;
      case 2:
        node = {.kind = Node::kClass, .text = random_() % 2 == 0 ? "a" : "ab"};
        break;
      case 3:
        node.text = "b";
        if (const size_t later = names_.size() - rules_.size() - 1; later > 0) {
          node = {.kind = Node::kRule, .rule = names_.size() - 1 - random_() % later};
        }
        break;
      default:
        if (depth > 0) node = Choice(depth - 1);
        if (depth == 0) node.text = "b";
    }
    switch (random_() % 8) {
      case 0:
        node.min = 0, node.max = -1;
        break;
      case 1:
        node.min = 1, node.max = -1;
        break;
      case 2:
        node.min = 0, node.max = 1;
        break;
      case 3:
        node.min = static_cast<int>(random_() % 3), node.max = 2;
        break;
      default:
        break;
    }
    return node;
  }

  std::string Print(const Node& node) const {
    std::string text;
    if (node.kind == Node::kLiteral) text = "\"" + node.text + "\"";
    if (node.kind == Node::kClass) text = "[" + node.text + "]";
    if (node.kind == Node::kRule) text = names_[node.rule];
    if (node.kind == Node::kSequence) {
      if (node.parts.empty()) return "\"\" ";  // a line may not end in |
      for (const Node& part : node.parts) {
        const bool group = part.kind == Node::kChoice;
        text += (group ? "(" + Print(part) + ")" : Print(part)) + Repetition(part) + " ";
      }
    }
    if (node.kind == Node::kChoice) {
      for (const Node& part : node.parts)
        text += (&part == &node.parts[0] ? "" : "| ") + Print(part);
    }
    return text;
  }
  static std::string Repetition(const Node& node) {
    if (node.min == 1 && node.max == 1) return "";
    if (node.min == 0 && node.max == -1) return "*";
    if (node.min == 1 && node.max == -1) return "+";
    if (node.min == 0 && node.max == 1) return "?";
    return fmt::format("{{{},{}}}", node.min, node.max);
  }

  // Where the node can end when it begins at a place.
  std::set<size_t> Ends(const Node& node, size_t at) {
    if (node.kind == Node::kLiteral) {
      return text_.substr(at).starts_with(node.text) ? std::set{at + node.text.size()}
                                                     : std::set<size_t>();
    }
    if (node.kind == Node::kClass) {
      return at < text_.size() && node.text.find(text_[at]) != std::string::npos
                 ? std::set{at + 1}
                 : std::set<size_t>();
    }
    if (node.kind == Node::kRule) {
      const auto key = std::pair(node.rule, at);
      if (const auto found = known_.find(key); found != known_.end()) return found->second;
      if (!open_.insert(key).second) {
        left_recursive_ = true;
        return {};
      }
      const auto ends = Ends(rules_[node.rule], at);
      open_.erase(key);
      return known_[key] = ends;
    }
    std::set<size_t> result;
    if (node.kind == Node::kChoice) {
      for (const Node& part : node.parts) result.merge(Ends(part, at));
      return result;
    }
    result = {at};
    for (const Node& part : node.parts) result = Repeated(part, result);
    return result;
  }
  std::set<size_t> Repeated(const Node& node, std::set<size_t> from) {
    std::set<size_t> result;
    for (int i = 0;; ++i) {
      if (i >= node.min) {
        const size_t before = result.size();
        result.insert(from.begin(), from.end());
        // More of the same ends nowhere else.
        if (i == node.max || (i > node.min && result.size() == before)) return result;
      }
      std::set<size_t> next;
      for (const size_t at : from) next.merge(Ends(node, at));
      from = std::move(next);
      if (from.empty()) return result;
    }
  }

  std::mt19937_64& random_;
  std::vector<std::string> names_;
  std::vector<Node> rules_;
  std::string text_;
  std::map<std::pair<size_t, size_t>, std::set<size_t>> known_;
  std::set<std::pair<size_t, size_t>> open_;
  bool left_recursive_ = false;
};

TEST(Gbnf, IsWhatASimpleRecogniserSays) {
  auto random = TestRandom(52);
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts.size() < 63; ++i) {
    texts.push_back(texts[i] + "a");
    texts.push_back(texts[i] + "b");
  }
  int compared = 0, accepted = 0, dropped = 0;
  for (int i = 0; i < 600; ++i) {
    RandomGrammar expected(random);
    std::shared_ptr<Grammar> grammar;
    std::string refusal;
    try {
      grammar = Gbnf(expected.Source());
    } catch (const InvalidArgument& error) {
      refusal = error.what();
    }
    for (const std::string& text : texts) {
      const auto answer = expected.Accepts(text);
      if (!answer) {
        EXPECT_THAT(refusal, ::testing::AnyOf(HasSubstr("left-recursive"), HasSubstr("finite")))
            << expected.Source();
        break;
      }
      if (grammar == nullptr) {
        // A rule that is not used may be what is left-recursive.
        if (refusal.find("finite") != std::string::npos) {
          EXPECT_FALSE(*answer) << expected.Source();
        }
        continue;
      }
      ++compared;
      accepted += *answer ? 1 : 0;
      const bool accepts = Accepts(*grammar, text);
      dropped += *answer && !accepts ? 1 : 0;
      ASSERT_TRUE(*answer || !accepts) << expected.Source() << "text: " << text;
    }
  }
  EXPECT_GT(compared, 5000);
  EXPECT_GT(accepted, 500);
  // Of an ambiguous grammar a place keeps 512 readings.
  EXPECT_LE(dropped * 100, accepted);
}

}  // namespace
}  // namespace litecache::grammar

// The time to compute a mask: for a place reached for the first time, and for a cached one.
//   mask_bench TOKENIZER_JSON [SCHEMA_JSON | --regex PATTERN | --gbnf GRAMMAR]
// Follows random texts of the schema token by token. The floor is one pass over a mask's words.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "grammar/grammar.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace litecache;           // NOLINT: a program of one file
using namespace litecache::grammar;  // NOLINT

// Processor time, which other programs on the machine hardly affect.
struct Clock {
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<Clock, duration>;
  static time_point now() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
  }
};

constexpr const char* kSchema = R"({"$defs": {"address": {"type": "object", "properties": {
    "street": {"type": "string"}, "city": {"type": "string", "maxLength": 40},
    "zip": {"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"}}, "required": ["street", "city"]}},
  "type": "object", "required": ["name", "age", "addresses", "tags"], "properties": {
    "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "email": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
    "addresses": {"type": "array", "items": {"$ref": "#/$defs/address"}, "maxItems": 3},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    "more": {"type": "object", "additionalProperties": {"type": ["string", "number"]}}}})";

// Work of a piece (TokenConstraint::Prepare).
constexpr int64_t kPiece = 10'000;

double Microseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

std::string Summary(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) { return values[static_cast<size_t>(q * (values.size() - 1))]; };
  return fmt::format("median {:.1f} us, 90% {:.1f} us, 99% {:.1f} us, longest {:.1f} us ({})",
                     at(0.5), at(0.9), at(0.99), at(1), values.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(
        stderr,
        "usage: mask_bench TOKENIZER_JSON [SCHEMA_JSON | --regex PATTERN | --gbnf GRAMMAR]\n");
    return 2;
  }
  const auto tokenizer = tokenizer::Tokenizer::FromFile(argv[1]);
  auto start = Clock::now();
  const auto vocabulary = Vocabulary::Of(*tokenizer);
  fmt::print("vocabulary: {} tokens, {} nodes of plain ones, {} of others, {:.1f} ms\n",
             vocabulary->size(), vocabulary->plain().nodes.size(), vocabulary->other().nodes.size(),
             Microseconds(start) / 1e3);
  start = Clock::now();
  const std::string form = argc > 2 ? argv[2] : "", text = argc > 3 ? argv[3] : "";
  std::shared_ptr<Grammar> grammar;
  if (form == "--regex") {
    grammar = Grammar::OfPattern(text, vocabulary);
  } else if (form == "--gbnf") {
    grammar = Grammar::OfGbnf(text, vocabulary);
  } else {
    Json schema = Json::parse(kSchema);
    if (!form.empty()) {
      std::ifstream file(form);
      schema = Json::parse(std::string{std::istreambuf_iterator<char>(file), {}});
    }
    grammar = Grammar::OfSchema(schema, vocabulary);
  }
  fmt::print("grammar: {} states, {:.2f} ms\n", grammar->automaton().states.size(),
             Microseconds(start) / 1e3);
  std::mt19937_64 random(1);
  // The first text reaches places for the first time; for later texts most are cached.
  for (const auto& [name, texts] : {std::pair("first text", 1), std::pair("next 20 texts", 20)}) {
    std::vector<double> masks, pieces, accepts;
    for (int i = 0; i < texts; ++i) {
      const auto at = grammar->NewConstraint();
      for (int step = 0; step < 400 && !at->Finished(); ++step) {
        const auto begin = Clock::now();
        for (bool prepared = false; !prepared;) {
          start = Clock::now();
          prepared = at->Prepare(kPiece);
          pieces.push_back(Microseconds(start));
        }
        const auto mask = at->Mask();
        masks.push_back(Microseconds(begin));
        std::vector<int32_t> allowed;
        for (int32_t token = 0; token < static_cast<int32_t>(vocabulary->size()); ++token) {
          if (MaskAllows(mask, token)) allowed.push_back(token);
        }
        int32_t token = allowed[random() % allowed.size()];
        // Strings end after some ten tokens.
        for (const int32_t other : allowed) {
          if (random() % 10 == 0 && vocabulary->bytes(other).starts_with('"')) token = other;
        }
        start = Clock::now();
        at->Accept(token);
        accepts.push_back(Microseconds(start));
      }
    }
    fmt::print("{}: {}\n  its pieces: {}\n  a token taken: {}\n", name, Summary(masks),
               Summary(pieces), Summary(accepts));
  }
}

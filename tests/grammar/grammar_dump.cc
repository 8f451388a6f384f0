// For compare_with_reference.py: reads lines {"schema", "texts", "seed", "samples"}, writes lines
// {"accepted": [one per text], "samples": [random texts of the grammar]} or {"error"}.
#include <iostream>
#include <random>
#include <string>

#include "base/error.h"
#include "grammar/grammar_testing.h"

namespace {

using namespace litecache;           // NOLINT: a program of one file
using namespace litecache::grammar;  // NOLINT

// A random walk; closing tokens become more likely as the text grows. null: it became too long.
Json Sample(const Grammar& grammar, std::mt19937_64& random) {
  const auto at = grammar.NewConstraint();
  std::string text;
  while (!at->Finished()) {
    if (at->Complete() && random() % 4 == 0) break;
    const auto mask = at->Mask();
    std::vector<uint8_t> allowed, closing;
    for (int b = 0; b < 256; ++b) {
      if (!MaskAllows(mask, b)) continue;
      allowed.push_back(static_cast<uint8_t>(b));
      if (b == '"' || b == '}' || b == ']' || b == '0') closing.push_back(static_cast<uint8_t>(b));
    }
    if (allowed.empty()) return text + " STUCK";
    if (text.size() > 2000) return nullptr;
    const bool close = !closing.empty() && random() % 400 < 40 + text.size();
    const auto& from = close ? closing : allowed;
    const uint8_t byte = from[random() % from.size()];
    text += static_cast<char>(byte);
    at->Accept(byte);
  }
  return text;
}

}  // namespace

int main() {
  const auto vocabulary = ByteVocabulary();
  for (std::string line; std::getline(std::cin, line);) {
    const Json input = Json::parse(line);
    Json output = Json::object();
    try {
      const auto grammar = Grammar::OfSchema(input["schema"], vocabulary);
      output["accepted"] = Json::array();
      for (const Json& text : input["texts"]) {
        output["accepted"].push_back(Accepts(*grammar, text.get<std::string>()));
      }
      std::mt19937_64 random(input["seed"].get<uint64_t>());
      output["samples"] = Json::array();
      for (int i = 0; i < input["samples"].get<int>(); ++i) {
        output["samples"].push_back(Sample(*grammar, random));
      }
    } catch (const Error& error) {
      output = {{"error", error.what()}};
    }
    std::cout << output.dump() << std::endl;
  }
}

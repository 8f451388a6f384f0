// Splits template source into tokens, with trim_blocks and lstrip_blocks on as in Transformers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::tokenizer::jinja {

enum class TokenType {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text is the operator
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  int line = 1;
  std::string text;  // data, name, unescaped string, operator
  int64_t integer = 0;
  double number = 0;
};

// The tokens of the whole source; the last one is kEnd. Throws InvalidArgument with the line for a
// malformed template.
std::vector<Token> Tokenize(std::string_view source);

// A token in an error message: "'name'", "end of print statement", ...
std::string Describe(const Token& token);

}  // namespace litecache::tokenizer::jinja

// Template source to tokens, with trim_blocks and lstrip_blocks on, as Transformers sets them.
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

// Tokens of the whole source, the last one kEnd.
// Throws InvalidArgument with the line for what is not a template.
std::vector<Token> Tokenize(std::string_view source);

// "'name'", "end of print statement", ...: a token in an error message.
std::string Describe(const Token& token);

}  // namespace litecache::tokenizer::jinja

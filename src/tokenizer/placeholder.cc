#include "tokenizer/placeholder.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"

namespace litecache::tokenizer {

std::shared_ptr<const Tokenizer> PlaceholderTokenizer(int64_t vocab) {
  constexpr int64_t kBytes = 256;
  if (vocab < kBytes) {
    throw InvalidArgument("a vocabulary of {} tokens has no room for the {} bytes of texts", vocab,
                          kBytes);
  }
  std::string space;
  AppendByteCharacter(' ', &space);
  nlohmann::json ids = nlohmann::json::object();
  for (int64_t id = 0; id < vocab; ++id) {
    std::string token = id < kBytes ? std::string() : fmt::format("{}{}", space, id);
    if (id < kBytes) AppendByteCharacter(static_cast<unsigned char>(id), &token);
    ids.emplace(std::move(token), id);
  }
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const nlohmann::json json = {
      {"version", "1.0"},
      {"pre_tokenizer", byte_level},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", ids}, {"merges", nlohmann::json::array()}}}};
  return Tokenizer::FromJson(json.dump(), "the placeholder tokenizer");
}

ChatTemplate PlaceholderTemplate() {
  return ChatTemplate(
      "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}");
}

}  // namespace litecache::tokenizer

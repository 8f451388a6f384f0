// Post-processors: add the special tokens around an encoded text, such as Llama's
// <|begin_of_text|>.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

namespace litecache::tokenizer {

class PostProcessor {
 public:
  // Adds nothing.
  PostProcessor() = default;

  // `ids` with the tokens that the template adds; with add_special_tokens false only the text
  // itself (as often as the template contains it).
  std::vector<int32_t> Apply(std::vector<int32_t> ids, bool add_special_tokens) const;

  // Ids that the template adds, for checks against the vocabulary.
  std::vector<int32_t> AddedIds() const;

 private:
  friend PostProcessor LoadPostProcessor(const nlohmann::json& json, std::string_view where,
                                         int depth);
  struct Part {
    bool is_text = false;
    std::vector<int32_t> ids;  // if it is not the text
  };
  bool identity_ = true;
  std::vector<Part> parts_;
};

// Types: TemplateProcessing (its template for one sequence), BertProcessing, RobertaProcessing,
// ByteLevel (changes offsets only), and a Sequence with at most one that adds tokens. Throws
// Unsupported for others, FileError for malformed fields.
PostProcessor LoadPostProcessor(const nlohmann::json& json, std::string_view where, int depth = 0);

}  // namespace litecache::tokenizer

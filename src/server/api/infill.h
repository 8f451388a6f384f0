// Prompts that ask a model for the text between two others, by the tokens that it was trained with.
#pragma once

#include <string_view>
#include <vector>

#include "litecache/engine.h"
#include "server/api/model.h"

namespace litecache::server {

struct InfillTexts {
  struct File {
    std::string_view name, text;
  };
  std::vector<File> files;  // read first
  std::string_view before, after;
  std::string_view begun;  // the beginning of the text between them
};

// Sets request->prompt, and adds the tokens with which a model ends such an answer to
// request->stop_token_ids. Special tokens that the texts spell out are ordinary text. Throws an
// ApiError that names `field` for a tokenizer without such tokens, and one for texts that are too
// long.
void SetInfillPrompt(const InfillTexts& texts, const char* field, const ServedModel& model,
                     Request* request);

}  // namespace litecache::server

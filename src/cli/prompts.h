// Sources of prompts: arguments, files, standard input, lists of token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::cli {

struct Prompt {
  std::string label;         // identifies it for a reader: its beginning, or its file
  std::string text;          // empty if the prompt is given as ids
  std::vector<int32_t> ids;  // if is_ids
  bool is_ids = false;
};

// Prompts in this order: words ("-" reads standard input), text files, token files; standard input
// if there are none of them. Texts are kept unchanged, including a newline at the end. Throws
// UsageError if there is no prompt and standard input is a terminal, FileError, InvalidArgument.
std::vector<Prompt> CollectPrompts(const std::vector<std::string>& words,
                                   const std::vector<std::string>& files,
                                   const std::vector<std::string>& token_files);

// The first line of `text`, cut to `characters` characters with "...".
std::string Beginning(std::string_view text, size_t characters);

}  // namespace litecache::cli

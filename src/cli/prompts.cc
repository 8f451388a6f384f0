#include "cli/prompts.h"

#include <unistd.h>

#include "cli/command.h"
#include "cli/input.h"
#include "tokenizer/utf8.h"

namespace litecache::cli {
namespace {

constexpr size_t kLabelCharacters = 60;

Prompt FromText(std::string text) {
  Prompt prompt;
  prompt.label = Beginning(text, kLabelCharacters);
  prompt.text = std::move(text);
  return prompt;
}

}  // namespace

std::string Beginning(std::string_view text, size_t characters) {
  const std::string line = tokenizer::RepairUtf8(text.substr(0, text.find('\n')));
  std::string result;
  size_t count = 0;
  for (size_t at = 0; at < line.size(); ++count) {
    if (count == characters) return result + "...";
    const size_t start = at;
    const char32_t c = tokenizer::NextCodePoint(line, &at);
    // Control characters could move the terminal's cursor.
    result += c < 0x20 || c == 0x7f ? " " : line.substr(start, at - start);
  }
  return result + (line.size() < text.size() && text.find('\n') + 1 < text.size() ? "..." : "");
}

std::vector<Prompt> CollectPrompts(const std::vector<std::string>& words,
                                   const std::vector<std::string>& files,
                                   const std::vector<std::string>& token_files) {
  std::vector<Prompt> prompts;
  prompts.reserve(words.size() + files.size() + token_files.size());
  for (const auto& word : words) {
    prompts.push_back(FromText(word == "-" ? ReadStandardInput() : word));
  }
  for (const auto& file : files) {
    Prompt prompt;
    prompt.label = file;
    prompt.text = ReadInput(file);
    prompts.push_back(std::move(prompt));
  }
  for (const auto& file : token_files) {
    Prompt prompt;
    prompt.label = file;
    prompt.ids = ParseTokenIds(ReadInput(file), file);
    prompt.is_ids = true;
    prompts.push_back(std::move(prompt));
  }
  if (!prompts.empty()) return prompts;
  if (isatty(STDIN_FILENO)) {
    throw UsageError(
        "no prompt: give it as an argument, with --prompt-file FILE, or through standard input");
  }
  prompts.push_back(FromText(ReadStandardInput()));
  if (prompts.back().text.empty()) {
    throw UsageError(
        "no prompt: standard input is empty; give one as an argument ('' is the empty one), with "
        "--prompt-file FILE, or through standard input");
  }
  return prompts;
}

}  // namespace litecache::cli

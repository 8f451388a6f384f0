#include "server/api/infill.h"

#include <cstdint>
#include <optional>

#include "base/error.h"
#include "server/api/answer.h"

namespace litecache::server {
namespace {

struct Names {
  const char *before, *after, *middle;
};

constexpr Names kNames[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},     // Qwen2.5-Coder, CodeGemma
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},           // StarCoder, Granite
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},           // SantaCoder
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},     // DeepSeek
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},  // GLM-4
    {"▁<PRE>", "▁<SUF>", "▁<MID>"},                             // Code Llama
    {"[PREFIX]", "[SUFFIX]", nullptr},                          // Codestral
};
constexpr const char* kFileNames[] = {"<|file_sep|>", "<|file_separator|>", "<file_sep>"};
constexpr const char* kOtherEnds[] = {"<|fim_pad|>",   "<fim_pad>", "<|repo_name|>", "<reponame>",
                                      "<|endoftext|>", "▁<EOT>",    "<EOT>"};

struct Marks {
  int32_t before = 0, after = 0;
  std::optional<int32_t> middle;  // none: `after` comes first, and the answer follows `before`
  std::optional<int32_t> file;    // begins a file
  std::vector<int32_t> ends;
};

std::optional<Marks> FindMarks(const tokenizer::Tokenizer& tokenizer) {
  for (const Names& names : kNames) {
    const auto before = tokenizer.TokenToId(names.before), after = tokenizer.TokenToId(names.after);
    Marks marks;
    if (names.middle != nullptr) marks.middle = tokenizer.TokenToId(names.middle);
    if (!before || !after || (names.middle != nullptr && !marks.middle)) continue;
    marks.before = *before;
    marks.after = *after;
    for (const char* name : kFileNames) {
      if (!marks.file) marks.file = tokenizer.TokenToId(name);
    }
    marks.ends = {*before, *after};
    if (marks.middle) marks.ends.push_back(*marks.middle);
    if (marks.file) marks.ends.push_back(*marks.file);
    for (const char* name : kOtherEnds) {
      if (const auto id = tokenizer.TokenToId(name)) marks.ends.push_back(*id);
    }
    return marks;
  }
  return std::nullopt;
}

}  // namespace

void SetInfillPrompt(const InfillTexts& texts, const char* field, const ServedModel& model,
                     Request* request) {
  const tokenizer::Tokenizer& tokenizer = model.tokenizer();
  const auto marks = FindMarks(tokenizer);
  if (!marks) {
    throw NotSupported(field,
                       "the tokenizer of {} has no tokens for filling in the middle "
                       "(<|fim_prefix|> and others): send the text before as 'prompt' to "
                       "/v1/completions",
                       model.name());
  }
  size_t bytes = texts.before.size() + texts.after.size() + texts.begun.size();
  for (const auto& file : texts.files) bytes += file.name.size() + file.text.size() + 2;
  const size_t most = MostPromptTokens(bytes, model);

  std::vector<int32_t>& ids = request->prompt;
  ids = tokenizer.Encode("");  // the tokens that begin a text, and sometimes one that ends it
  if (!ids.empty() && ids.back() == tokenizer.eos_id()) ids.pop_back();
  const auto add = [&](std::string_view text) {
    if (ids.size() >= most) throw CapacityError("the text has more than {} tokens", most);
    const auto more = tokenizer.Encode(
        text,
        {.add_special_tokens = false, .parse_special = false, .max_tokens = most - ids.size()});
    ids.insert(ids.end(), more.begin(), more.end());
  };
  for (const auto& file : texts.files) {
    if (marks->file) ids.push_back(*marks->file);
    add(fmt::format("{}\n{}\n", file.name, file.text));
  }
  if (marks->file && !texts.files.empty()) ids.push_back(*marks->file);
  if (!marks->middle) {
    ids.push_back(marks->after);
    add(texts.after);
  }
  ids.push_back(marks->before);
  add(texts.before);
  if (marks->middle) {
    ids.push_back(marks->after);
    add(texts.after);
    ids.push_back(*marks->middle);
  }
  add(texts.begun);
  auto& stops = request->stop_token_ids;
  stops.insert(stops.end(), marks->ends.begin(), marks->ends.end());
}

}  // namespace litecache::server

#include "cli/chat_prompt.h"

#include <algorithm>

#include "base/error.h"
#include "io/file.h"

namespace litecache::cli {
namespace {

struct SpecialToken {
  std::string text;
  int32_t id;
};

// Longest first, so that at any place the longest one is found.
std::vector<SpecialToken> SpecialTokens(const tokenizer::Tokenizer& tokenizer) {
  std::vector<SpecialToken> tokens;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) continue;
    auto text = tokenizer.IdToToken(id);
    if (text && !text->empty()) tokens.push_back({std::move(*text), id});
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const auto& a, const auto& b) { return a.text.size() > b.text.size(); });
  return tokens;
}

struct Occurrence {
  size_t begin;
  size_t end;
  int32_t id;
};

// Special tokens spelled out in `text`, leftmost and longest first, not overlapping.
std::vector<Occurrence> FindSpecialTokens(const tokenizer::Tokenizer& tokenizer,
                                          const std::string& text) {
  const auto tokens = SpecialTokens(tokenizer);
  bool starts[256] = {};
  for (const auto& token : tokens) starts[static_cast<unsigned char>(token.text[0])] = true;
  std::vector<Occurrence> found;
  for (size_t at = 0; at < text.size();) {
    const auto match =
        !starts[static_cast<unsigned char>(text[at])]
            ? tokens.end()
            : std::find_if(tokens.begin(), tokens.end(), [&](const SpecialToken& token) {
                return text.compare(at, token.text.size(), token.text) == 0;
              });
    if (match == tokens.end()) {
      ++at;
    } else {
      found.push_back({at, at + match->text.size(), match->id});
      at += match->text.size();
    }
  }
  return found;
}

}  // namespace

namespace {

// True where the request wrote the token, or an end of it. What the request wrote between two ends
// of the template's is the template's intent: many write "<|" + role + "|>".
bool IsInput(const tokenizer::RenderedPrompt& prompt, const Occurrence& token) {
  return prompt.OverlapsInput(token.begin, token.begin + 1) ||
         prompt.OverlapsInput(token.end - 1, token.end);
}

}  // namespace

std::vector<int32_t> EncodeRendered(const tokenizer::Tokenizer& tokenizer,
                                    const tokenizer::RenderedPrompt& prompt) {
  const auto found = FindSpecialTokens(tokenizer, prompt.text);
  const bool spoofed = std::any_of(found.begin(), found.end(),
                                   [&](const Occurrence& token) { return IsInput(prompt, token); });
  if (!spoofed) return tokenizer.Encode(prompt.text, {.add_special_tokens = false});
  // Rare: the text between the template's own special tokens is encoded as text.
  const tokenizer::EncodeOptions as_text{.add_special_tokens = false, .parse_special = false};
  std::vector<int32_t> ids;
  size_t done = 0;
  const auto add_text = [&](size_t end) {
    const auto part =
        tokenizer.Encode(std::string_view(prompt.text).substr(done, end - done), as_text);
    ids.insert(ids.end(), part.begin(), part.end());
  };
  for (const auto& token : found) {
    if (IsInput(prompt, token)) continue;
    if (token.begin > done) add_text(token.begin);
    ids.push_back(token.id);
    done = token.end;
  }
  if (done < prompt.text.size()) add_text(prompt.text.size());
  return ids;
}

ChatPrompt::ChatPrompt(const Engine& engine, const std::string& template_file)
    : engine_(engine), template_(Load(engine, template_file)) {
  const auto add = [&](const char* name, std::optional<int32_t> id) {
    if (!id || template_.special_tokens().contains(name)) return;
    if (auto text = engine.tokenizer().IdToToken(*id)) options_.special_tokens[name] = *text;
  };
  add("bos_token", engine.tokenizer().bos_id());
  add("eos_token", engine.tokenizer().eos_id());
}

tokenizer::ChatTemplate ChatPrompt::Load(const Engine& engine, const std::string& template_file) {
  if (!template_file.empty()) {
    try {
      return tokenizer::ChatTemplate(io::ReadTextFile(template_file));
    } catch (const InvalidArgument& error) {
      throw FileError("{}: {}", template_file, error.what());
    }
  }
  auto found = tokenizer::ChatTemplate::FindIn(engine.directory());
  if (!found) {
    throw Unsupported(
        "{}: this model has no chat template: use `generate` without --chat, or give one with "
        "--chat-template FILE",
        engine.directory().string());
  }
  return std::move(*found);
}

std::vector<int32_t> ChatPrompt::Encode(const std::vector<ChatTurn>& turns) const {
  auto messages = nlohmann::ordered_json::array();
  for (const auto& turn : turns) {
    messages.push_back({{"role", turn.role}, {"content", turn.content}});
  }
  return EncodeRendered(engine_.tokenizer(), template_.ApplyMarked(messages, options_));
}

}  // namespace litecache::cli

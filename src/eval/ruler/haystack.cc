#include "eval/ruler/haystack.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "eval/python_text.h"
#include "eval/ruler/words.h"
#include "eval/text_files.h"
#include "io/json.h"
#include "tokenizer/utf8.h"

namespace litecache::eval {
namespace {

// Words before a full stop that does not end a sentence.
constexpr std::array<std::string_view, 20> kAbbreviations = {
    "mr.",  "mrs.", "ms.",   "dr.", "prof.", "st.", "vs.", "e.g.", "i.e.", "etc.",
    "inc.", "ltd.", "corp.", "jr.", "sr.",   "no.", "cf.", "al.",  "fig.", "u.s."};

bool EndsSentence(std::string_view word, std::string_view next) {
  while (!word.empty() && std::string_view("\"')]").find(word.back()) != std::string_view::npos) {
    word.remove_suffix(1);
  }
  if (word.empty()) return false;
  if (word.back() == '?' || word.back() == '!') return true;
  if (word.back() != '.') return false;
  if (!next.empty() && next.front() >= 'a' && next.front() <= 'z') return false;
  // An initial: "J."
  if (word.size() == 2 && word.front() >= 'A' && word.front() <= 'Z' && word.front() != 'I') {
    return false;
  }
  std::string lower(word);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return std::find(kAbbreviations.begin(), kAbbreviations.end(), lower) == kAbbreviations.end();
}

std::string CollapseSpaces(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t space = SpaceLength(text, i);
    if (space == 0) {
      out += text[i++];
    } else {
      if (!out.empty() && out.back() != ' ') out += ' ';
      i += space;
    }
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace

std::shared_ptr<const Haystack> Haystack::FromText(std::string text, Pieces pieces,
                                                   std::string_view name) {
  if (!tokenizer::IsValidUtf8(text)) throw InvalidArgument("{}: the text is not UTF-8", name);
  if (text.size() > std::numeric_limits<uint32_t>::max()) {
    throw InvalidArgument("{}: {} bytes; a haystack holds at most 4 GiB", name, text.size());
  }
  auto haystack = std::make_shared<Haystack>();
  const bool lines = pieces == Pieces::kLines;
  haystack->text_ = lines ? std::move(text) : CollapseSpaces(text);
  haystack->joint_ = lines ? '\n' : ' ';
  const std::string_view all = haystack->text_;
  std::string_view previous;
  size_t line_begin = 0;
  for (size_t i = 0; i < all.size();) {
    if (const size_t space = SpaceLength(all, i); space > 0) {
      i += space;
      continue;
    }
    const size_t begin = i;
    while (i < all.size() && SpaceLength(all, i) == 0) ++i;
    const std::string_view word = all.substr(begin, i - begin);
    const auto number = static_cast<uint32_t>(haystack->word_end_.size());
    if (lines) {
      const size_t gap = number == 0 ? 0 : haystack->word_end_.back();
      const size_t newline = all.find('\n', gap);
      if (number == 0 || newline < begin) {
        // Empty lines belong to the piece that follows them.
        line_begin = number == 0 ? 0 : newline + 1;
        haystack->pieces_.push_back({line_begin, number});
      }
    } else if (number == 0 || EndsSentence(previous, word)) {
      haystack->pieces_.push_back({begin, number});
    }
    haystack->word_end_.push_back(static_cast<uint32_t>(i));
    previous = word;
  }
  if (haystack->word_end_.empty()) throw InvalidArgument("{}: holds no words", name);
  return haystack;
}

std::shared_ptr<const Haystack> Haystack::FromPath(const std::string& path,
                                                   std::string_view pieces) {
  namespace fs = std::filesystem;
  if (pieces != "auto" && pieces != "sentences" && pieces != "lines") {
    throw InvalidArgument("--haystack-pieces: '{}' is none of auto, sentences, lines", pieces);
  }
  std::error_code error;
  const bool directory = fs::is_directory(path, error);
  const std::string extension = fs::path(path).extension().string();
  std::string text = ReadTexts(path);
  if (!directory && extension == ".json") {
    const auto json = io::ParseJson(text, path);
    if (!json.is_object() || !json.contains("text") || !json["text"].is_string()) {
      throw FileError("{}: a JSON haystack is an object with the string \"text\"", path);
    }
    text = json["text"].get<std::string>();
  }
  const bool prose =
      !directory && (extension == ".json" || extension == ".txt" || extension == ".md");
  const bool sentences = pieces == "auto" ? prose : pieces == "sentences";
  return FromText(std::move(text), sentences ? Pieces::kSentences : Pieces::kLines, path);
}

std::shared_ptr<const Haystack> Haystack::Default() {
  static const auto haystack =
      FromText(std::string(DefaultHaystackText()), Pieces::kLines, "the built-in haystack");
  return haystack;
}

std::vector<std::string_view> Haystack::Window(int64_t count, int64_t first_piece) const {
  std::vector<std::string_view> window;
  const std::string_view all = text_;
  auto piece = static_cast<size_t>(first_piece);
  while (count > 0) {
    const int64_t first = pieces_[piece].first_word;
    const int64_t last =
        piece + 1 < pieces_.size() ? int64_t{pieces_[piece + 1].first_word} : words();
    const int64_t taken = std::min(count, last - first);
    const size_t begin = pieces_[piece].begin;
    window.push_back(all.substr(begin, word_end_[static_cast<size_t>(first + taken - 1)] - begin));
    count -= taken;
    piece = piece + 1 < pieces_.size() ? piece + 1 : 0;
  }
  return window;
}

}  // namespace litecache::eval

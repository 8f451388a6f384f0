#include "tokenizer/pre_tokenizer.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/work_limit.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior LoadBehavior(const std::string& name, std::string_view where) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  throw Unsupported("{}.behavior: \"{}\" is not supported", where, name);
}

// Combines matches and gaps into the spans that become pieces.
void ApplyBehavior(Behavior behavior, std::vector<Span>* spans) {
  std::vector<Span>& s = *spans;
  size_t kept = 0;
  switch (behavior) {
    case Behavior::kIsolated:
      return;
    case Behavior::kRemoved:
      std::erase_if(s, [](const Span& span) { return span.is_match; });
      return;
    case Behavior::kContiguous:
    case Behavior::kMergedWithPrevious: {
      bool previous = false;
      for (const Span span : s) {
        const bool merge = behavior == Behavior::kContiguous ? span.is_match == previous
                                                             : span.is_match && !previous;
        if (merge && kept > 0) {
          s[kept - 1].end = span.end;
        } else {
          s[kept++] = span;
        }
        previous = span.is_match;
      }
      s.resize(kept);
      return;
    }
    case Behavior::kMergedWithNext: {
      bool previous = false;
      for (size_t i = s.size(); i-- > 0;) {
        const Span span = s[i];
        if (span.is_match && !previous && kept > 0) {
          s[s.size() - kept].begin = span.begin;
        } else {
          s[s.size() - ++kept] = span;
        }
        previous = span.is_match;
      }
      s.erase(s.begin(), s.end() - static_cast<ptrdiff_t>(kept));
      return;
    }
  }
}

// Replaces every text piece by what `cut` appends for it.
void ForEachText(Pieces* pieces, const std::function<void(const Piece&, Pieces*)>& cut) {
  Pieces out;
  out.reserve(pieces->size());
  for (const Piece& piece : *pieces) {
    CheckWork();
    if (piece.token >= 0) {
      out.push_back(piece);
    } else {
      cut(piece, &out);
    }
  }
  *pieces = std::move(out);
}

// Appends the part [begin, end) of a piece, unless it is empty.
void AppendPart(const Piece& piece, size_t begin, size_t end, Pieces* out) {
  if (begin == end) return;
  out->push_back({piece.text.substr(begin, end - begin), -1, piece.starts_input && begin == 0});
}

class PatternSplit : public PreTokenizer {
 public:
  PatternSplit(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void Apply(Pieces* pieces, TextArena*) const override {
    Pattern::Splitter splitter(pattern_);
    std::vector<Span> spans;
    ForEachText(pieces, [&](const Piece& piece, Pieces* out) {
      spans = splitter.Split(piece.text);
      if (invert_) {
        for (Span& span : spans) span.is_match = !span.is_match;
      }
      ApplyBehavior(behavior_, &spans);
      for (const Span& span : spans) AppendPart(piece, span.begin, span.end, out);
    });
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// Every character that satisfies `predicate` is a separate match.
class CharacterSplit : public PreTokenizer {
 public:
  CharacterSplit(std::function<bool(char32_t)> predicate, Behavior behavior)
      : predicate_(std::move(predicate)), behavior_(behavior) {}

  void Apply(Pieces* pieces, TextArena*) const override {
    std::vector<Span> spans;
    ForEachText(pieces, [&](const Piece& piece, Pieces* out) {
      spans.clear();
      size_t last = 0;
      for (size_t offset = 0; offset < piece.text.size();) {
        CheckWork();
        const size_t start = offset;
        if (!predicate_(NextCodePoint(piece.text, &offset))) continue;
        if (last != start) spans.push_back({last, start, false});
        spans.push_back({start, offset, true});
        last = offset;
      }
      if (last != piece.text.size()) spans.push_back({last, piece.text.size(), false});
      ApplyBehavior(behavior_, &spans);
      for (const Span& span : spans) AppendPart(piece, span.begin, span.end, out);
    });
  }

 private:
  std::function<bool(char32_t)> predicate_;
  Behavior behavior_;
};

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> parts)
      : parts_(std::move(parts)) {}
  void Apply(Pieces* pieces, TextArena* arena) const override {
    for (const auto& part : parts_) part->Apply(pieces, arena);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

// The pattern of GPT-2.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, bool use_regex)
      : add_prefix_space_(add_prefix_space) {
    if (use_regex) {
      split_ = std::make_unique<PatternSplit>(
          Pattern::FromRegex(Regex(kByteLevelPattern, "ByteLevel")), Behavior::kIsolated, false);
    }
  }

  void Apply(Pieces* pieces, TextArena* arena) const override {
    if (add_prefix_space_) {
      for (Piece& piece : *pieces) {
        if (piece.token < 0 && piece.text.front() != ' ') {
          piece.text = arena->Copy(std::string(" ").append(piece.text));
        }
      }
    }
    if (split_) split_->Apply(pieces, arena);
    for (Piece& piece : *pieces) {
      if (piece.token < 0) piece.text = Map(piece.text, arena);
    }
  }

 private:
  static std::string_view Map(std::string_view text, TextArena* arena) {
    char* const begin = arena->Allocate(2 * text.size());
    char* out = begin;
    for (const char byte : text) {
      const char32_t c = kByteAlphabet[static_cast<unsigned char>(byte)];
      if (c < 0x80) {
        *out++ = static_cast<char>(c);
      } else {
        *out++ = static_cast<char>(0xC0 | c >> 6);
        *out++ = static_cast<char>(0x80 | (c & 0x3F));
      }
    }
    return arena->Commit(static_cast<size_t>(out - begin));
  }

  bool add_prefix_space_;
  std::unique_ptr<PatternSplit> split_;
};

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(MetaspaceOptions options) : options_(std::move(options)) {}

  void Apply(Pieces* pieces, TextArena* arena) const override {
    const std::string& mark = options_.replacement;
    ForEachText(pieces, [&](const Piece& piece, Pieces* out) {
      std::string text;
      text.reserve(piece.text.size() + piece.text.size() / 2);
      for (const char c : piece.text) {
        if (c == ' ') {
          text += mark;
        } else {
          text += c;
        }
      }
      if (!text.starts_with(mark) &&
          (options_.prepend == MetaspaceOptions::Prepend::kAlways ||
           (options_.prepend == MetaspaceOptions::Prepend::kFirst && piece.starts_input))) {
        text.insert(0, mark);
      }
      const Piece changed{arena->Copy(text), -1, piece.starts_input};
      // Each mark begins a new word.
      size_t begin = 0;
      size_t from = changed.text.starts_with(mark) ? mark.size() : 0;
      while (options_.split) {
        const size_t at = changed.text.find(mark, from);
        if (at == std::string_view::npos) break;
        AppendPart(changed, begin, at, out);
        begin = at;
        from = at + mark.size();
      }
      AppendPart(changed, begin, changed.text.size(), out);
    });
  }

 private:
  MetaspaceOptions options_;
};

class FixedLengthPreTokenizer : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(size_t length) : length_(length) {}
  void Apply(Pieces* pieces, TextArena*) const override {
    ForEachText(pieces, [&](const Piece& piece, Pieces* out) {
      size_t begin = 0;
      size_t count = 0;
      for (size_t offset = 0; offset < piece.text.size();) {
        offset += SequenceLength(static_cast<unsigned char>(piece.text[offset]));
        if (++count % length_ != 0) continue;
        AppendPart(piece, begin, offset, out);
        begin = offset;
      }
      AppendPart(piece, begin, piece.text.size(), out);
    });
  }

 private:
  size_t length_;
};

std::unique_ptr<PreTokenizer> Sequence(std::vector<std::unique_ptr<PreTokenizer>> parts) {
  return std::make_unique<SequencePreTokenizer>(std::move(parts));
}

std::unique_ptr<PreTokenizer> Characters(std::function<bool(char32_t)> predicate,
                                         Behavior behavior) {
  return std::make_unique<CharacterSplit>(std::move(predicate), behavior);
}

}  // namespace

std::unique_ptr<PreTokenizer> LoadPreTokenizer(const Json& json, std::string_view where,
                                               int depth) {
  CheckDepth(depth, where);
  const std::string& type = RequireString(json, "type", where);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    const Json& list =
        AsArray(RequireField(json, "pretokenizers", where), At(where, "pretokenizers"));
    for (size_t i = 0; i < list.size(); ++i) {
      parts.push_back(LoadPreTokenizer(list[i], At(where, "pretokenizers", i), depth + 1));
    }
    return Sequence(std::move(parts));
  }
  if (type == "Split") {
    return std::make_unique<PatternSplit>(
        LoadPattern(json, where), LoadBehavior(RequireString(json, "behavior", where), where),
        BoolOr(json, "invert", false, where));
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevelPreTokenizer>(BoolOr(json, "add_prefix_space", true, where),
                                                   BoolOr(json, "use_regex", true, where));
  }
  if (type == "Metaspace") {
    return std::make_unique<MetaspacePreTokenizer>(LoadMetaspace(json, where));
  }
  if (type == "Whitespace") {
    // Runs of word characters, and runs of characters that are neither word characters nor spaces.
    return std::make_unique<PatternSplit>(
        Pattern::FromRegex(
            Regex(R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)", "Whitespace")),
        Behavior::kRemoved, true);
  }
  if (type == "WhitespaceSplit") return Characters(&IsWhitespace, Behavior::kRemoved);
  if (type == "Digits") {
    return Characters(&IsNumeric, BoolOr(json, "individual_digits", false, where)
                                      ? Behavior::kIsolated
                                      : Behavior::kContiguous);
  }
  if (type == "Punctuation") {
    return Characters(&IsPunctuation,
                      LoadBehavior(StringOr(json, "behavior", "Isolated", where), where));
  }
  if (type == "CharDelimiterSplit") {
    const char32_t delimiter = SingleCharacter(json, "delimiter", where);
    return Characters([delimiter](char32_t c) { return c == delimiter; }, Behavior::kRemoved);
  }
  if (type == "FixedLength") {
    const size_t length = CountOr(json, "length", 5, where);
    if (length == 0) throw FileError("{}: 0 is not a length", At(where, "length"));
    return std::make_unique<FixedLengthPreTokenizer>(length);
  }
  throw Unsupported("{}.type: the pre-tokenizer \"{}\" is not supported", where, type);
}

}  // namespace litecache::tokenizer

#include "tokenizer/decoder.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/pattern.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

// Joins the bytes of all tokens into one text. A token with a character outside the byte-level
// alphabet (an added token) is kept as it is.
class ByteLevelStage : public DecodeStage {
 public:
  void Put(std::string_view fragment, bool) override {
    std::string bytes;
    for (size_t offset = 0; offset < fragment.size();) {
      const char32_t c = NextCodePoint(fragment, &offset);
      if (c >= kByteAlphabetEnd || kByteOfCharacter[c] < 0) {
        bytes = fragment;
        break;
      }
      bytes += static_cast<char>(kByteOfCharacter[c]);
    }
    std::string text;
    repairer_.Add(bytes, &text);
    Pass(text);
  }
  void Finish() override {
    std::string text;
    repairer_.Flush(&text);
    Pass(text);
    next_->Finish();
  }

 private:
  void Pass(std::string_view text) { next_->Put(text, !std::exchange(begun_, true)); }

  Utf8Repairer repairer_;
  bool begun_ = false;
};

// A run of "<0xNN>" tokens becomes text if the whole run is valid UTF-8, else one U+FFFD per byte;
// the result is known only when the run has ended.
class ByteFallbackStage : public DecodeStage {
 public:
  void Put(std::string_view token, bool) override {
    if (const std::optional<char> byte = Byte(token)) {
      run_ += *byte;
      return;
    }
    EndRun();
    next_->Put(token, true);
  }
  void Finish() override {
    EndRun();
    next_->Finish();
  }

 private:
  static std::optional<char> Byte(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    int value = 0;
    for (size_t i = 3; i < 5; ++i) {
      const char c = token[i];
      if (i == 3 && c == '+') continue;  // the package's number parser accepts a sign
      int digit = 0;
      if (c >= '0' && c <= '9') {
        digit = c - '0';
      } else if (c >= 'A' && c <= 'F') {
        digit = c - 'A' + 10;
      } else if (c >= 'a' && c <= 'f') {
        digit = c - 'a' + 10;
      } else {
        return std::nullopt;
      }
      value = 16 * value + digit;
    }
    return static_cast<char>(value);
  }
  void EndRun() {
    if (run_.empty()) return;
    if (IsValidUtf8(run_)) {
      next_->Put(run_, true);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) next_->Put(kReplacementCharacter, true);
    }
    run_.clear();
  }

  std::string run_;
};

class FuseStage : public DecodeStage {
 public:
  void Put(std::string_view fragment, bool) override {
    next_->Put(fragment, !std::exchange(begun_, true));
  }

 private:
  bool begun_ = false;
};

// Removes up to `start` and `stop` occurrences of a character from the ends of every token.
class StripStage : public DecodeStage {
 public:
  StripStage(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void Put(std::string_view fragment, bool begins) override {
    if (begins) {
      to_strip_ = start_;
      held_ = 0;  // the trailing occurrences of the previous token
    }
    std::string text;
    for (size_t offset = 0; offset < fragment.size();) {
      const size_t length = SequenceLength(static_cast<unsigned char>(fragment[offset]));
      const std::string_view c = fragment.substr(offset, length);
      offset += length;
      if (c != content_) {
        for (; held_ > 0; --held_) text += content_;
        to_strip_ = 0;
        text += c;
      } else if (to_strip_ > 0) {
        --to_strip_;
      } else if (held_ < stop_) {
        ++held_;
      } else {
        text += content_;  // the oldest one held back
      }
    }
    next_->Put(text, begins);
  }

 private:
  std::string content_;
  size_t start_;
  size_t stop_;
  size_t to_strip_ = 0;
  size_t held_ = 0;
};

// Replaces within whole tokens; a token that arrives in fragments is held back until it ends.
class ReplaceStage : public DecodeStage {
 public:
  ReplaceStage(const Pattern& pattern, const std::string& content, bool fragmented)
      : pattern_(pattern), content_(content), fragmented_(fragmented) {}
  void Put(std::string_view fragment, bool begins) override {
    if (!fragmented_) return next_->Put(pattern_.ReplaceAll(fragment, content_), begins);
    if (begins) EndToken();
    token_ += fragment;
    open_ = true;
    PassCertain();
  }
  void Finish() override {
    EndToken();
    next_->Finish();
  }

 private:
  // With a plain string, only a suffix that could be the beginning of a match has to wait.
  void PassCertain() {
    if (!pattern_.literal() || pattern_.literal()->empty()) return;
    const std::string& needle = *pattern_.literal();
    size_t done = 0;  // after the last match, counted from the left: matches do not overlap
    for (size_t at = token_.find(needle); at != std::string::npos; at = token_.find(needle, done)) {
      done = at + needle.size();
    }
    size_t wait = std::min(needle.size() - 1, token_.size() - done);
    while (wait > 0 && !needle.starts_with(std::string_view(token_).substr(token_.size() - wait))) {
      --wait;
    }
    Pass(token_.size() - wait);
  }
  void Pass(size_t size) {
    next_->Put(pattern_.ReplaceAll(std::string_view(token_).substr(0, size), content_),
               !std::exchange(begun_, true));
    token_.erase(0, size);
  }
  void EndToken() {
    if (open_) Pass(token_.size());
    open_ = begun_ = false;
  }

  const Pattern& pattern_;
  const std::string& content_;
  bool fragmented_;
  std::string token_;   // the part of the token that arrived and was not passed on
  bool open_ = false;   // a token has begun
  bool begun_ = false;  // part of it was passed on
};

class MetaspaceStage : public DecodeStage {
 public:
  MetaspaceStage(std::string replacement, bool drop_first)
      : replacement_(std::move(replacement)), drop_first_(drop_first) {}
  void Put(std::string_view fragment, bool begins) override {
    if (begins) ++tokens_;
    const bool drop = drop_first_ && tokens_ == 1;
    std::string text;
    for (size_t offset = 0; offset < fragment.size();) {
      const size_t length = SequenceLength(static_cast<unsigned char>(fragment[offset]));
      const std::string_view c = fragment.substr(offset, length);
      offset += length;
      if (c != replacement_) {
        text += c;
      } else if (!drop) {
        text += ' ';
      }
    }
    next_->Put(text, begins);
  }

 private:
  std::string replacement_;
  bool drop_first_;
  size_t tokens_ = 0;
};

// The end-of-word suffix becomes a space, and nothing in the last token: one token is held back.
class SuffixStage : public DecodeStage {
 public:
  explicit SuffixStage(const Pattern& suffix) : suffix_(suffix) {}
  void Put(std::string_view token, bool) override {
    if (held_) next_->Put(suffix_.ReplaceAll(*held_, " "), true);
    held_ = token;
  }
  void Finish() override {
    if (held_) next_->Put(suffix_.ReplaceAll(*held_, ""), true);
    held_.reset();
    next_->Finish();
  }

 private:
  const Pattern& suffix_;
  std::optional<std::string> held_;
};

class JoinStage : public DecodeStage {
 public:
  void Put(std::string_view token, bool) override {
    if (std::exchange(begun_, true)) next_->Put(" ", true);
    next_->Put(token, true);
  }

 private:
  bool begun_ = false;
};

// A decoder whose stages need only their constructor's arguments.
template <typename Stage, typename... Args>
class PlainDecoder : public Decoder {
 public:
  explicit PlainDecoder(Args... args) : args_(std::move(args)...) {}
  void AppendStages(DecodeStages* stages) const override {
    stages->push_back(
        std::apply([](const auto&... args) { return std::make_unique<Stage>(args...); }, args_));
  }

 private:
  std::tuple<Args...> args_;
};

template <typename Stage, typename... Args>
std::unique_ptr<Decoder> Plain(Args... args) {
  return std::make_unique<PlainDecoder<Stage, Args...>>(std::move(args)...);
}

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content, bool fragmented)
      : pattern_(std::move(pattern)), content_(std::move(content)), fragmented_(fragmented) {}
  void AppendStages(DecodeStages* stages) const override {
    stages->push_back(std::make_unique<ReplaceStage>(pattern_, content_, fragmented_));
  }

 private:
  Pattern pattern_;
  std::string content_;
  bool fragmented_;
};

class SuffixDecoder : public Decoder {
 public:
  explicit SuffixDecoder(std::string suffix) : suffix_(Pattern::FromString(std::move(suffix))) {}
  void AppendStages(DecodeStages* stages) const override {
    stages->push_back(std::make_unique<SuffixStage>(suffix_));
  }

 private:
  Pattern suffix_;
};

class SequenceDecoder : public Decoder {
 public:
  explicit SequenceDecoder(std::vector<std::unique_ptr<Decoder>> parts)
      : parts_(std::move(parts)) {}
  void AppendStages(DecodeStages* stages) const override {
    for (const auto& part : parts_) part->AppendStages(stages);
  }

 private:
  std::vector<std::unique_ptr<Decoder>> parts_;
};

// *fragmented: an earlier decoder joined the tokens into one, which arrives in fragments.
std::unique_ptr<Decoder> Load(const Json& json, std::string_view where, int depth,
                              bool* fragmented) {
  CheckDepth(depth, where);
  const std::string& type = RequireString(json, "type", where);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Decoder>> parts;
    const Json& list = AsArray(RequireField(json, "decoders", where), At(where, "decoders"));
    for (size_t i = 0; i < list.size(); ++i) {
      parts.push_back(Load(list[i], At(where, "decoders", i), depth + 1, fragmented));
    }
    return std::make_unique<SequenceDecoder>(std::move(parts));
  }
  if (type == "Fuse") {
    *fragmented = true;
    return Plain<FuseStage>();
  }
  if (type == "Strip") {
    std::string content;
    AppendUtf8(SingleCharacter(json, "content", where), &content);
    return Plain<StripStage>(content, CountOr(json, "start", 0, where),
                             CountOr(json, "stop", 0, where));
  }
  if (type == "Replace") {
    return std::make_unique<ReplaceDecoder>(LoadPattern(json, where),
                                            RequireString(json, "content", where), *fragmented);
  }
  if (type == "Metaspace") {
    const MetaspaceOptions options = LoadMetaspace(json, where);
    return Plain<MetaspaceStage>(options.replacement,
                                 options.prepend != MetaspaceOptions::Prepend::kNever);
  }
  const bool known = type == "ByteLevel" || type == "ByteFallback" || type == "BPEDecoder";
  if (known && *fragmented) {
    throw Unsupported("{}.type: \"{}\" after a decoder that joins all tokens is not supported",
                      where, type);
  }
  if (type == "ByteLevel") {
    *fragmented = true;
    return Plain<ByteLevelStage>();
  }
  if (type == "ByteFallback") return Plain<ByteFallbackStage>();
  if (type == "BPEDecoder") {
    return std::make_unique<SuffixDecoder>(StringOr(json, "suffix", "</w>", where));
  }
  throw Unsupported("{}.type: the decoder \"{}\" is not supported", where, type);
}

}  // namespace

std::unique_ptr<Decoder> LoadDecoder(const Json& json, std::string_view where) {
  bool fragmented = false;
  return Load(json, where, 0, &fragmented);
}

std::unique_ptr<Decoder> DefaultDecoder() { return Plain<JoinStage>(); }

class DecodeChain::Collector : public DecodeStage {
 public:
  void Put(std::string_view fragment, bool) override { text += fragment; }
  void Finish() override {}
  std::string text;
};

DecodeChain::DecodeChain(const Decoder& decoder) : collector_(std::make_unique<Collector>()) {
  decoder.AppendStages(&stages_);
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages_[i]->set_next(i + 1 < stages_.size() ? stages_[i + 1].get() : collector_.get());
  }
}

DecodeChain::~DecodeChain() = default;

void DecodeChain::Put(std::string_view token) {
  (stages_.empty() ? collector_.get() : stages_[0].get())->Put(token, true);
}

void DecodeChain::Finish() {
  if (!stages_.empty()) stages_[0]->Finish();
}

std::string DecodeChain::Take() { return std::exchange(collector_->text, {}); }

}  // namespace litecache::tokenizer

#include "tokenizer/normalizer.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/work_limit.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

// A chain of replacements can double the text with every link.
void CheckGrowth(size_t before, size_t after) {
  constexpr size_t kFactor = 64;
  constexpr size_t kSlack = 1 << 16;
  if (after > before * kFactor + kSlack) {
    throw CapacityError("the tokenizer's normalizer makes {} bytes out of {}", after, before);
  }
}

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> parts)
      : parts_(std::move(parts)) {}
  void Apply(NormalizedText* text) const override {
    const size_t before = text->text.size();
    for (const auto& part : parts_) {
      CheckWork(static_cast<int64_t>(text->text.size() / 16));
      part->Apply(text);
      CheckGrowth(before, text->text.size());
    }
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(NormalForm form) : form_(form) {}
  void Apply(NormalizedText* text) const override { text->text = Normalize(text->text, form_); }

 private:
  NormalForm form_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void Apply(NormalizedText* text) const override {
    if (!text->text.empty()) text->text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Apply(NormalizedText* text) const override {
    std::string out = pattern_.ReplaceAll(text->text, content_);
    CheckGrowth(text->text.size(), out.size());
    text->text = std::move(out);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void Apply(NormalizedText* text) const override {
    std::string_view rest = text->text;
    while (left_ && !rest.empty()) {
      size_t length = 0;
      if (!IsWhitespace(NextCodePoint(rest, &length))) break;
      rest.remove_prefix(length);
      text->front_removed = true;
    }
    while (right_ && !rest.empty()) {
      const size_t start = PreviousCharacter(rest, rest.size());
      size_t offset = start;
      if (!IsWhitespace(NextCodePoint(rest, &offset))) break;
      rest.remove_suffix(rest.size() - start);
    }
    text->text = std::string(rest);
  }

 private:
  bool left_;
  bool right_;
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void Apply(NormalizedText* text) const override {
    std::string out;
    out.reserve(2 * text->text.size());
    for (const char byte : text->text) AppendByteCharacter(static_cast<unsigned char>(byte), &out);
    text->text = std::move(out);
  }
};

// Handles one character at a time: appends the replacement of `c`.
using CharacterMap = std::function<void(char32_t c, std::string* out)>;

class CharacterNormalizer : public Normalizer {
 public:
  explicit CharacterNormalizer(CharacterMap map) : map_(std::move(map)) {}
  void Apply(NormalizedText* text) const override {
    std::string out;
    out.reserve(text->text.size());
    for (size_t offset = 0; offset < text->text.size();) {
      const bool first = offset == 0;
      map_(NextCodePoint(text->text, &offset), &out);
      if (first && out.empty()) text->front_removed = true;
    }
    text->text = std::move(out);
  }

 private:
  CharacterMap map_;
};

void MapNmt(char32_t c, std::string* out) {
  if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
      c == 0x9F) {
    return;
  }
  const bool space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                     (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xFEFF || c == 0xFFFD;
  AppendUtf8(space ? U' ' : c, out);
}

std::unique_ptr<Normalizer> Characters(CharacterMap map) {
  return std::make_unique<CharacterNormalizer>(std::move(map));
}

std::unique_ptr<Normalizer> MakeForm(NormalForm form) {
  return std::make_unique<FormNormalizer>(form);
}

}  // namespace

std::unique_ptr<Normalizer> LoadNormalizer(const Json& json, std::string_view where, int depth) {
  CheckDepth(depth, where);
  const std::string& type = RequireString(json, "type", where);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> parts;
    const Json& list = AsArray(RequireField(json, "normalizers", where), At(where, "normalizers"));
    for (size_t i = 0; i < list.size(); ++i) {
      parts.push_back(LoadNormalizer(list[i], At(where, "normalizers", i), depth + 1));
    }
    return std::make_unique<SequenceNormalizer>(std::move(parts));
  }
  if (type == "NFC") return MakeForm(NormalForm::kNfc);
  if (type == "NFD") return MakeForm(NormalForm::kNfd);
  if (type == "NFKC") return MakeForm(NormalForm::kNfkc);
  if (type == "NFKD") return MakeForm(NormalForm::kNfkd);
  if (type == "Lowercase") return Characters(&AppendLower);
  if (type == "Nmt") return Characters(&MapNmt);
  if (type == "StripAccents") {
    return Characters([](char32_t c, std::string* out) {
      if (!IsMark(c)) AppendUtf8(c, out);
    });
  }
  if (type == "Strip") {
    return std::make_unique<StripNormalizer>(BoolOr(json, "strip_left", true, where),
                                             BoolOr(json, "strip_right", true, where));
  }
  if (type == "Prepend") {
    return std::make_unique<PrependNormalizer>(RequireString(json, "prepend", where));
  }
  if (type == "Replace") {
    return std::make_unique<ReplaceNormalizer>(LoadPattern(json, where),
                                               RequireString(json, "content", where));
  }
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  throw Unsupported("{}.type: the normalizer \"{}\" is not supported", where, type);
}

}  // namespace litecache::tokenizer

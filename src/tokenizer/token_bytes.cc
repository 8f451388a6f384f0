// The bytes that tokens stand for inside a text.
#include <cstdio>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/decoder.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

std::string DecodeAll(const Decoder& decoder, std::initializer_list<std::string_view> tokens) {
  DecodeChain chain(decoder);
  for (const std::string_view token : tokens) chain.Put(token);
  chain.Finish();
  return chain.Take();
}

// The bytes of a token in the byte-level alphabet; a token with other characters is kept as it is.
std::string FromAlphabet(const std::string& token) {
  std::string bytes;
  for (size_t offset = 0; offset < token.size();) {
    const char32_t c = NextCodePoint(token, &offset);
    if (c >= kByteAlphabetEnd || kByteOfCharacter[c] < 0) return token;
    bytes += static_cast<char>(kByteOfCharacter[c]);
  }
  return bytes;
}

}  // namespace

std::vector<std::string> Tokenizer::AllTokenBytes() const {
  const Decoder& decoder = *impl_->decoder;
  // The kind of decoder is detected from its output.
  const std::string space = [] {
    std::string text = "a";
    AppendByteCharacter(' ', &text);
    return text + "b";
  }();
  const bool byte_level = DecodeAll(decoder, {space}) == "a b";
  const bool byte_fallback = DecodeAll(decoder, {"a", "<0x42>"}) == "aB";
  std::vector<std::string> all(static_cast<size_t>(vocab_size()));
  for (size_t i = 0; i < all.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string* text = impl_->DecoderText(id, true);
    if (text == nullptr || IsSpecial(id)) continue;
    if (byte_level) {
      all[i] = FromAlphabet(*text);
      continue;
    }
    unsigned value = 0;
    if (byte_fallback && text->size() == 6 && text->starts_with("<0x") && text->ends_with('>') &&
        std::sscanf(text->c_str(), "<0x%2X>", &value) == 1) {
      all[i] = static_cast<char>(value);
      continue;
    }
    // In the middle of a text, where no decoder strips anything.
    const std::string before = DecodeAll(decoder, {"a", "a"});
    const std::string within = DecodeAll(decoder, {"a", *text, "a"});
    const std::string rest = before.substr(1);  // the text of the second token
    if (within.starts_with('a') && within.size() >= before.size() && within.ends_with(rest)) {
      all[i] = within.substr(1, within.size() - before.size());
    }
  }
  return all;
}

}  // namespace litecache::tokenizer

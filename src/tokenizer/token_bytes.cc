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

// How a decoder spells bytes, detected from its output.
struct ByteSpelling {
  explicit ByteSpelling(const Decoder& decoder) {
    std::string space = "a";
    AppendByteCharacter(' ', &space);
    alphabet = DecodeAll(decoder, {space + "b"}) == "a b";
    fallback = DecodeAll(decoder, {"a", "<0x42>"}) == "aB";
  }
  bool alphabet;  // all tokens are spelled in the byte-level alphabet
  bool fallback;  // <0x42> is a byte
};

std::string BytesOfToken(const std::string& text, const Decoder& decoder,
                         const ByteSpelling& spelling) {
  if (spelling.alphabet) return FromAlphabet(text);
  unsigned value = 0;
  if (spelling.fallback && text.size() == 6 && text.starts_with("<0x") && text.ends_with('>') &&
      std::sscanf(text.c_str(), "<0x%2X>", &value) == 1) {
    return {static_cast<char>(value)};
  }
  // In the middle of a text, where no decoder strips anything.
  const std::string before = DecodeAll(decoder, {"a", "a"});
  const std::string within = DecodeAll(decoder, {"a", text, "a"});
  const std::string rest = before.substr(1);  // the text of the second token
  const bool found =
      within.starts_with('a') && within.size() >= before.size() && within.ends_with(rest);
  return found ? within.substr(1, within.size() - before.size()) : "";
}

}  // namespace

std::vector<std::string> Tokenizer::AllTokenBytes() const {
  const ByteSpelling spelling(*impl_->decoder);
  std::vector<std::string> all(static_cast<size_t>(vocab_size()));
  for (size_t i = 0; i < all.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string* text = impl_->DecoderText(id, true);
    if (text != nullptr && !IsSpecial(id)) all[i] = BytesOfToken(*text, *impl_->decoder, spelling);
  }
  return all;
}

std::string Tokenizer::TokenBytes(int32_t id) const {
  const std::string* text = impl_->DecoderText(id, true);
  if (text == nullptr || IsSpecial(id)) return "";
  return BytesOfToken(*text, *impl_->decoder, ByteSpelling(*impl_->decoder));
}

}  // namespace litecache::tokenizer

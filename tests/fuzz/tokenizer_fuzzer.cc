// A tokenizer.json and, after the first byte FF, a text: whatever they contain, there is a result
// or an error, decoding gives valid UTF-8, and streaming equals decoding at once.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/logging.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using litecache::tokenizer::Tokenizer;
  static const bool quiet = (litecache::InitLogging("off"), true);
  (void)quiet;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(input.find('\xFF'), input.size());
  const std::string_view text = input.substr(std::min(cut + 1, input.size()));
  try {
    const auto tokenizer = Tokenizer::FromJson(input.substr(0, cut));
    for (const bool flag : {false, true}) {
      const std::vector<int32_t> ids =
          tokenizer->Encode(text, {.add_special_tokens = flag, .parse_special = flag});
      const std::string decoded = tokenizer->Decode(ids, flag);
      LC_CHECK(litecache::tokenizer::IsValidUtf8(decoded));
      litecache::tokenizer::StreamDecoder stream(tokenizer, flag);
      std::string streamed;
      for (const int32_t id : ids) {
        const std::string part = stream.Add(id);
        LC_CHECK(litecache::tokenizer::IsValidUtf8(part));
        streamed += part;
      }
      LC_CHECK(streamed + stream.Flush() == decoded);
    }
  } catch (const litecache::Error&) {
  }
  return 0;
}

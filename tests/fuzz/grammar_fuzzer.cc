// Arbitrary bytes as a JSON schema. If it compiles, the grammar can be followed to a text, byte by
// byte without dead ends; otherwise it is rejected with an Error.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_testing.h"
#include "io/json_parser.h"

namespace {

using namespace litecache;           // NOLINT: a program of one file
using namespace litecache::grammar;  // NOLINT

void TrySchema(std::string_view text, uint8_t choice) {
  static const auto vocabulary = ByteVocabulary();
  auto limits = io::JsonLimits::OfRequest();
  const auto schema = io::ParseLimitedJson<Json>(text, &limits);
  const auto at = Grammar::OfSchema(schema, vocabulary)->NewConstraint();
  for (int step = 0; step < 100 && !at->Finished(); ++step) {
    const auto mask = at->Mask();
    int32_t byte = -1;
    for (int32_t i = 0; i < 256 && byte < 0; ++i) {
      const int32_t candidate = (i * 7 + choice * 31 + step) % 256;
      if (MaskAllows(mask, candidate)) byte = candidate;
    }
    LC_CHECK(byte >= 0, "a dead end");
    at->Accept(byte);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 16384) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  try {
    if (data[0] == 'p') {
      const std::string pattern(text);
      TrySchema(Json{{"pattern", pattern}}.dump(), data[1]);
    } else {
      TrySchema(text, data[1]);
    }
  } catch (const Error&) {
  } catch (const Json::exception&) {  // from invalid UTF-8, in the dump above
    LC_CHECK(data[0] == 'p');
  }
  return 0;
}

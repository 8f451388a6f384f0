#include "tokenizer/metaspace.h"

#include "tokenizer/json_fields.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {

char32_t SingleCharacter(const Json& json, std::string_view key, std::string_view where) {
  const std::string& text = RequireString(json, key, where);
  if (text.empty() || SequenceLength(static_cast<unsigned char>(text[0])) != text.size()) {
    throw FileError("{}: \"{}\" is not one character", At(where, key), text);
  }
  size_t offset = 0;
  return NextCodePoint(text, &offset);
}

MetaspaceOptions LoadMetaspace(const Json& json, std::string_view where) {
  MetaspaceOptions options;
  options.replacement.clear();
  AppendUtf8(SingleCharacter(json, "replacement", where), &options.replacement);
  const std::string scheme = StringOr(json, "prepend_scheme", "always", where);
  if (scheme == "first") {
    options.prepend = MetaspaceOptions::Prepend::kFirst;
  } else if (scheme == "never") {
    options.prepend = MetaspaceOptions::Prepend::kNever;
  } else if (scheme != "always") {
    throw Unsupported("{}: \"{}\" is not supported", At(where, "prepend_scheme"), scheme);
  }
  if (!BoolOr(json, "add_prefix_space", true, where) &&
      options.prepend != MetaspaceOptions::Prepend::kNever) {
    throw FileError("{}: false contradicts prepend_scheme \"{}\"", At(where, "add_prefix_space"),
                    scheme);
  }
  options.split = BoolOr(json, "split", true, where);
  return options;
}

}  // namespace litecache::tokenizer

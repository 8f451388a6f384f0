#include "server/api/json.h"

#include <fmt/format.h>

#include "server/api/error.h"
#include "tokenizer/utf8.h"

namespace litecache::server {
namespace {

constexpr size_t kExcerpt = 80;

}  // namespace

Json ParseBody(std::string_view body) {
  if (body.empty()) throw BadRequest("", "the request has no body: send a JSON object");
  auto limits = io::JsonLimits::OfRequest();
  Json value = ParseText(body, "", "the body", &limits);
  if (!value.is_object()) throw BadRequest("", "the body is not a JSON object");
  return value;
}

Json ParseText(std::string_view text, const std::string& field, const std::string& what,
               io::JsonLimits* limits) {
  try {
    return io::ParseLimitedJson<Json>(text, limits);
  } catch (const io::JsonError& error) {
    const std::string reason = tokenizer::RepairUtf8(error.what());
    if (error.offset() == io::JsonError::kNowhere) {
      throw BadRequest(field, "{} is JSON that is too large: {}", what, reason);
    }
    throw BadRequest(field, "{} is not valid JSON: byte {}: {}", what, error.offset() + 1, reason);
  }
}

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      escaped += '\\';
      escaped += c;
    } else if (c == '\n') {
      escaped += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      escaped += fmt::format("\\u{:04x}", c);
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string Printable(std::string_view text) {
  constexpr size_t kLongest = 200;
  std::string result;
  for (const char c : text.substr(0, kLongest)) {
    if (c > ' ' && c < 127 && c != '\\') {
      result += c;
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return text.size() > kLongest ? result + "..." : result;
}

std::string Excerpt(const Json& value) {
  std::string text = Dump(value);
  if (text.size() > kExcerpt) {
    text.resize(tokenizer::PreviousCharacter(text, kExcerpt + 1));
    text += "...";
  }
  return text;
}

}  // namespace litecache::server

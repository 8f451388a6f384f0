#include "server/api/json.h"

#include "server/api/error.h"
#include "tokenizer/utf8.h"

namespace litecache::server {
namespace {

constexpr int kMaxDepth = 128;
constexpr size_t kExcerpt = 80;

}  // namespace

Json ParseBody(std::string_view body) {
  if (body.empty()) throw BadRequest("", "the request has no body: send a JSON object");
  Json value;
  try {
    value = Json::parse(body.begin(), body.end(), [](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) {
        throw BadRequest("", "the body's JSON nests deeper than {} levels", kMaxDepth);
      }
      return true;
    });
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const std::string_view text = error.what();
    const size_t end = text.find("] ");
    throw BadRequest(
        "", "the body is not valid JSON: {}",
        tokenizer::RepairUtf8(end == std::string_view::npos ? text : text.substr(end + 2)));
  }
  if (!value.is_object()) throw BadRequest("", "the body is not a JSON object");
  return value;
}

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
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

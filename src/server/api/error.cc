#include "server/api/error.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/logging.h"
#include "base/work_limit.h"
#include "server/api/json.h"
#include "tokenizer/utf8.h"

namespace litecache::server {
namespace {

Json OrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

// The engine's messages about a field begin with its name.
std::string FieldOf(std::string_view message) {
  static constexpr std::string_view kFields[] = {
      "temperature",      "top_k",      "top_p",          "min_p",      "repetition_penalty",
      "presence_penalty", "logit_bias", "stop_token_ids", "max_tokens", "frequency_penalty",
      "logprobs",         "min_tokens", "bad_words",      "n",          "prompt_logprobs"};
  const std::string_view word = message.substr(0, message.find_first_of(" :"));
  const bool known = std::find(std::begin(kFields), std::end(kFields), word) != std::end(kFields);
  return known ? std::string(word) : "";
}

}  // namespace

std::string ApiError::Shortened(std::string text) {
  constexpr size_t kLongest = 1000;
  if (text.size() > kLongest) {
    text.resize(tokenizer::PreviousCharacter(text, kLongest + 1));
    text += "...";
  }
  return text;
}

ErrorShape ErrorShapeOf(std::string_view path) {
  const bool anthropic = path.starts_with("/v1/messages") || path.starts_with("/messages");
  return anthropic ? ErrorShape::kAnthropic : ErrorShape::kOpenAi;
}

const char* ApiError::AnthropicType() const {
  switch (status_) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status_ >= 500 ? "api_error" : "invalid_request_error";
  }
}

std::string ApiError::Body(ErrorShape shape) const {
  const bool anthropic = shape == ErrorShape::kAnthropic;
  Json body = anthropic ? Json{{"type", "error"}} : Json::object();
  body["error"] = {{"message", message_},
                   {"type", anthropic ? AnthropicType() : type_.c_str()},
                   {"param", OrNull(param_)},
                   {"code", OrNull(code_)}};
  return Dump(body);
}

HttpResponse ApiError::Response(ErrorShape shape) const {
  HttpResponse response;
  response.status = status_;
  response.body = Body(shape);
  if (retry_after_ > 0) response.headers.emplace_back("Retry-After", std::to_string(retry_after_));
  if (status_ == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

ApiError StatusError(int status, std::string message) {
  const char* type = status >= 500 ? "server_error" : "invalid_request_error";
  std::string code;
  switch (status) {
    case 404:
      code = "not_found";
      break;
    case 405:
      code = "method_not_allowed";
      break;
    case 408:
      code = "request_timeout";
      break;
    case 413:
      code = "request_too_large";
      break;
    case 415:
      code = "unsupported_media_type";
      break;
    case 431:
      code = "header_too_large";
      break;
    case 503:
      code = "unavailable";
      break;
    default:
      break;
  }
  return {status, type, code, "", std::move(message)};
}

ApiError ToApiError(std::exception_ptr error) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const ApiError& e) {
    return e;
  } catch (const WorkStopped& e) {
    if (e.cancelled()) return StatusError(503, "the server is shutting down");
    return {400, "invalid_request_error", "request_too_complex", "", e.what()};
  } catch (const CapacityError& e) {
    return {400, "invalid_request_error", "context_length_exceeded", "", e.what()};
  } catch (const InvalidArgument& e) {
    return {400, "invalid_request_error", "invalid_value", FieldOf(e.what()), e.what()};
  } catch (const Unsupported& e) {
    return {400, "invalid_request_error", "unsupported_value", "", e.what()};
  } catch (const std::bad_alloc&) {
    return StatusError(503, "the server is out of memory");
  } catch (const std::exception& e) {
    LogError("server: {}", e.what());
    return StatusError(500, e.what());
  } catch (...) {
    return StatusError(500, "unknown error");
  }
}

}  // namespace litecache::server

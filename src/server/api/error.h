// Errors in the format of the API that is called.
#pragma once

#include <fmt/core.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/message.h"

namespace litecache::server {

// Clients of Anthropic's API look elsewhere, and know other types, than those of OpenAI's.
enum class ErrorShape { kOpenAi, kAnthropic };
ErrorShape ErrorShapeOf(std::string_view path);

class ApiError : public std::exception {
 public:
  ApiError(int status, std::string type, std::string code, std::string param, std::string message)
      : status_(status),
        type_(std::move(type)),
        code_(std::move(code)),
        param_(Shortened(std::move(param))),
        message_(Shortened(std::move(message))) {}

  const char* what() const noexcept override { return message_.c_str(); }
  int status() const { return status_; }

  // Seconds after which the client may try again; sent as Retry-After.
  ApiError& RetryAfter(int seconds) {
    retry_after_ = seconds;
    return *this;
  }
  // {"error": {"message", "type", "param", "code"}}, with a "type" beside it in Anthropic's shape.
  std::string Body(ErrorShape shape = ErrorShape::kOpenAi) const;
  HttpResponse Response(ErrorShape shape = ErrorShape::kOpenAi) const;

 private:
  const char* AnthropicType() const;
  // Errors quote the client's input, which may contain names of a megabyte.
  static std::string Shortened(std::string text);

  int status_;
  std::string type_;
  std::string code_;   // "": null
  std::string param_;  // "": null
  std::string message_;
  int retry_after_ = 0;
};

// 400 for the value of a field; param "": the body as a whole.
template <typename... Args>
ApiError BadRequest(std::string param, fmt::format_string<Args...> format, Args&&... args) {
  return {400, "invalid_request_error", "invalid_value", std::move(param),
          fmt::format(format, std::forward<Args>(args)...)};
}

// 400 for features of the API that this server does not support.
template <typename... Args>
ApiError NotSupported(std::string param, fmt::format_string<Args...> format, Args&&... args) {
  return {400, "invalid_request_error", "unsupported_parameter", std::move(param),
          fmt::format(format, std::forward<Args>(args)...)};
}

// The generic error for an HTTP status.
ApiError StatusError(int status, std::string message);

// Converts an exception to an ApiError; errors of the engine and the tokenizer by their class.
ApiError ToApiError(std::exception_ptr error);

}  // namespace litecache::server

// Parses bytes to an HTTP request. The only part that uses Beast.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace litecache::server {

// Reads one request from bytes that arrive in arbitrary pieces.
class RequestReader {
 public:
  struct Limits {
    size_t header_bytes = 64 << 10;
    size_t body_bytes = 32 << 20;
  };
  enum class State { kReading, kDone, kFailed };

  explicit RequestReader(const Limits& limits);
  ~RequestReader();
  RequestReader(RequestReader&&) noexcept;
  RequestReader& operator=(RequestReader&&) noexcept;

  // Consumes bytes from the front of `bytes` and returns their number. While the reader is not
  // finished, the caller passes the rest again, followed by newer bytes.
  size_t Feed(std::string_view bytes);

  State state() const { return state_; }
  // The header is complete, the body is not.
  bool HasHeader() const;
  // The request without its body, once HasHeader() is true.
  HttpRequest Header() const;
  // The client sent "Expect: 100-continue" and waits for an answer before it sends the body.
  bool WantsContinue() const;

  // In state kFailed: the status to answer with.
  int error_status() const { return error_status_; }
  const std::string& error() const { return error_; }

  // In state kDone: the request. Call once.
  HttpRequest Take();

 private:
  HttpRequest MakeRequest() const;
  void Fail(int status, std::string message);

  struct Impl;
  std::unique_ptr<Impl> impl_;
  State state_ = State::kReading;
  int error_status_ = 0;
  std::string error_;
};

}  // namespace litecache::server

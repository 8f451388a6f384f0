// Bytes to an HTTP request. The only place that knows Beast.
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

  // Takes bytes from the front of `bytes` and returns how many. What it leaves while it is still
  // reading is to be given again, with what came after it.
  size_t Feed(std::string_view bytes);

  State state() const { return state_; }
  // The header is complete, the body is not.
  bool HasHeader() const;
  // Of a request that HasHeader(): without its body.
  HttpRequest Header() const;
  // The client sent "Expect: 100-continue" and waits for an answer before it sends the body.
  bool WantsContinue() const;

  // kFailed: what to answer.
  int error_status() const { return error_status_; }
  const std::string& error() const { return error_; }

  // kDone: the request. Once.
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

// One request and the answer to it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "server/http/message.h"
#include "server/memory_budget.h"

namespace litecache::server {

class Connection;

// Produces an answer over time. Its functions are called on the loop's thread.
class Producer {
 public:
  virtual ~Producer() = default;
  // Called when something may have changed: Exchange::Wake() was called, or bytes were sent. Does
  // what can be done at once, and returns.
  virtual void Advance() = 0;
  // The client has disconnected, or the server shuts down. Nothing is called after this.
  virtual void Abandon() = 0;
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<Connection> connection, HttpRequest request,
           MemoryBudget::Share body_share);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const HttpRequest& request() const { return request_; }
  // Moves the request's body, which may be large, out of the exchange. Called by one thread.
  std::string TakeBody() {
    const MemoryBudget::Share given_back = std::move(body_share_);
    return std::move(request_.body);
  }

  // ---- any thread ----
  // Sends the whole answer. Exactly one of Respond() and Attach() is called.
  void Respond(HttpResponse response);
  // `producer` produces the answer; it is kept until the answer ends.
  void Attach(std::shared_ptr<Producer> producer);
  void Wake();
  // The client has disconnected: the answer has no receiver.
  bool abandoned() const { return abandoned_.load(std::memory_order_relaxed); }

  // ---- loop's thread ----
  // Adds a header to the answer, whoever produces it. Call before the request is handed on.
  void AddHeader(std::string name, std::string value) {
    headers_.emplace_back(std::move(name), std::move(value));
  }
  // From within Producer::Advance(): the whole answer, or the beginning of a stream and its parts.
  void Finish(const HttpResponse& response);
  // `keep_alive` is sent after each ping interval of the server in which nothing else was sent.
  void BeginStream(const HttpResponse& head, std::string keep_alive);
  void Write(std::string_view bytes);
  void EndStream();
  // Whether more may be written; if not, Advance() is called again as soon as it may.
  bool Writable() const;
  bool streaming() const { return streaming_; }

  // When the request arrived.
  std::chrono::steady_clock::time_point started() const { return started_; }
  int status() const { return status_; }

 private:
  friend class Connection;

  HttpRequest request_;
  MemoryBudget::Share body_share_;
  HttpHeaders headers_;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Producer> producer_;
  std::string keep_alive_;
  bool head_sent_ = false;
  bool streaming_ = false;
  bool chunked_ = false;
  bool done_ = false;  // everything has been handed to the connection
  int status_ = 0;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::atomic<bool> abandoned_{false};
  std::atomic<bool> woken_{false};
};

}  // namespace litecache::server

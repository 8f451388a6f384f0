// One client's connection: requests in sequence, each answered before the next one starts.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/exchange.h"
#include "server/http/io_loop.h"
#include "server/http/request_reader.h"
#include "server/http/transport.h"

namespace litecache::server {

class HttpServer;

// Used by the loop's thread only. It keeps reading while a request is being answered: the end of
// the stream reveals that a client has disconnected before there is anything to send. What a client
// sends ahead (pipelining) is buffered, up to a bound.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer* server, std::unique_ptr<Transport> transport);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Start();
  // The server is full: answers with an error and closes.
  void Refuse();
  // Accepts no further request; closes at once if none is in progress.
  void Drain();
  // Closes at once.
  void Close();
  // Enforces time limits and sends keep-alives of streams.
  void CheckTime(std::chrono::steady_clock::time_point now);

  IoLoop& loop() { return *loop_; }

 private:
  friend class Exchange;
  using Clock = std::chrono::steady_clock;

  void ReadMore();
  void OnRead(bool ok, size_t bytes);
  // Charges received bytes of a request to the budget of all requests. False: the request was
  // refused.
  bool Admit(size_t bytes);
  void Parse();
  void BeginExchange();
  // Answers with an error of the HTTP layer, then closes the connection.
  void RefuseRequest(int status, const std::string& message);
  void RefuseRequest(const HttpResponse& response);

  void OnAttach(Exchange& exchange, std::shared_ptr<Producer> producer);
  void OnRespond(Exchange& exchange, const HttpResponse& response);
  void OnWake(Exchange& exchange);
  // Calls Producer::Advance() and catches its exceptions.
  void Advance(Exchange& exchange);

  void SendResponse(Exchange& exchange, const HttpResponse& response);
  void BeginStream(Exchange& exchange, const HttpResponse& head);
  void Append(std::string_view bytes);
  void AppendChunk(const Exchange& exchange, std::string_view bytes);
  void EndStream(Exchange& exchange);
  bool Writable() const;
  size_t unsent() const { return output_.size() - sent_ + queued_.size(); }
  void WriteMore();
  void OnWrite(bool ok, size_t bytes);
  // Called when the whole answer has been sent.
  void FinishExchange();
  // Sends nothing more but keeps reading briefly, so that the client can read the answer before the
  // system resets a connection with unread bytes.
  void Linger();

  HttpServer* server_;  // null once closed
  IoLoop* loop_;
  std::unique_ptr<Transport> transport_;

  // State of reading.
  std::array<char, 16 << 10> buffer_;
  bool reading_ = false;
  std::string input_;
  std::optional<RequestReader> reader_;
  bool header_checked_ = false;
  bool said_continue_ = false;
  size_t request_bytes_ = 0;  // received of the request that is being read
  MemoryBudget::Share body_share_;
  Clock::time_point waiting_since_;

  // State of answering.
  std::shared_ptr<Exchange> exchange_;
  std::string output_;  // being written
  size_t sent_ = 0;     // bytes of output_ that were sent
  std::string queued_;  // to be sent after output_
  bool writing_ = false;
  Clock::time_point last_write_;
  bool keep_alive_ = true;
  bool advancing_ = false;

  bool handshaking_ = true;
  bool draining_ = false;
  bool closing_after_write_ = false;
  bool lingering_ = false;
  size_t discarded_ = 0;
  bool closed_ = false;
};

}  // namespace litecache::server

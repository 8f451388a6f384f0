#include "server/http/connection.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "server/http/http_server.h"

namespace litecache::server {
namespace {

// How much a client may send ahead of an answer before reading pauses.
constexpr size_t kReadAhead = 64 << 10;
// Above this a producer has to wait; what has accumulated by then is sent in one piece.
constexpr size_t kMaxUnsent = 64 << 10;
constexpr size_t kMaxDiscarded = 64 << 20;
constexpr size_t kSmallRequest = 64 << 10;
constexpr std::chrono::seconds kLingerTime(2);
constexpr double kSlowestBytesPerSecond = 16 << 10;

}  // namespace

Connection::Connection(HttpServer* server, std::unique_ptr<Transport> transport)
    : server_(server),
      loop_(&server->loop_),
      transport_(std::move(transport)),
      body_share_(server->bodies_),
      waiting_since_(Clock::now()),
      last_write_(waiting_since_) {}

Connection::~Connection() = default;

void Connection::Start() {
  transport_->Handshake([self = shared_from_this()](bool ok) {
    self->handshaking_ = false;
    if (self->closed_) return;
    if (!ok) return self->Close();
    self->waiting_since_ = Clock::now();
    self->ReadMore();
  });
}

void Connection::Refuse() {
  transport_->Handshake([self = shared_from_this()](bool ok) {
    self->handshaking_ = false;
    if (self->closed_) return;
    if (!ok) return self->Close();
    self->RefuseRequest(503, "all connections are in use (--max-connections): try again later");
  });
}

void Connection::Drain() {
  draining_ = true;
  keep_alive_ = false;
  if (exchange_ == nullptr && unsent() == 0 && !reader_ && input_.empty() && !lingering_) Close();
}

void Connection::Close() {
  if (closed_) return;
  closed_ = true;
  const auto self = shared_from_this();
  transport_->Close();
  if (auto exchange = std::move(exchange_)) {
    exchange->abandoned_ = true;
    if (!exchange->done_) ++server_->counters_.abandoned;
    --server_->counters_.exchanges;
    if (auto producer = std::move(exchange->producer_)) producer->Abandon();
  }
  std::exchange(server_, nullptr)->Remove(self);
}

void Connection::CheckTime(Clock::time_point now) {
  if (closed_) return;
  const auto& options = server_->options_;
  const auto timeout = [&] {
    ++server_->counters_.timeouts;
    Close();
  };
  if (lingering_) {
    if (now - last_write_ > kLingerTime) Close();
    return;
  }
  if (unsent() > 0) {
    if (now - last_write_ > options.idle_timeout) timeout();
    return;
  }
  if (exchange_ != nullptr) {
    if (exchange_->streaming_ && !exchange_->keep_alive_.empty() &&
        now - last_write_ >= options.ping_interval) {
      AppendChunk(*exchange_, exchange_->keep_alive_);
      WriteMore();
    }
    return;
  }
  // A request may occupy a connection only for a bounded time, whether it is slow on purpose or
  // not.
  const double more = static_cast<double>(request_bytes_) / kSlowestBytesPerSecond;
  const std::chrono::duration<double> waited = now - waiting_since_;
  const std::chrono::duration<double> limit = options.idle_timeout;
  if (waited.count() <= limit.count() + more) return;
  if (!handshaking_ && (reader_ || !input_.empty())) {
    ++server_->counters_.timeouts;
    RefuseRequest(408, "the request did not arrive in time");
  } else {
    timeout();
  }
}

void Connection::ReadMore() {
  if (closed_ || reading_) return;
  if (exchange_ != nullptr && input_.size() >= kReadAhead) return;
  reading_ = true;
  transport_->Read(buffer_.data(), buffer_.size(),
                   [self = shared_from_this()](bool ok, size_t bytes) { self->OnRead(ok, bytes); });
}

void Connection::OnRead(bool ok, size_t bytes) {
  reading_ = false;
  if (closed_) return;
  if (!ok) return Close();
  if (lingering_ || closing_after_write_) {
    discarded_ += bytes;
    if (discarded_ > kMaxDiscarded) return Close();
    return ReadMore();
  }
  if (exchange_ == nullptr && !reader_ && input_.empty()) waiting_since_ = Clock::now();
  input_.append(buffer_.data(), bytes);
  if (exchange_ == nullptr) {
    if (!Admit(bytes)) return;
    Parse();
  }
  ReadMore();
}

bool Connection::Admit(size_t bytes) {
  request_bytes_ += bytes;
  // Small requests are always admitted: the number of connections is bounded.
  if (request_bytes_ <= kSmallRequest || body_share_.Grow(static_cast<int64_t>(bytes))) return true;
  RefuseRequest(503, "the memory for large requests is in use: try again later");
  return false;
}

void Connection::Parse() {
  if (input_.empty() || exchange_ != nullptr) return;
  if (!reader_) reader_.emplace(server_->options_.limits);
  input_.erase(0, reader_->Feed(input_));
  switch (reader_->state()) {
    case RequestReader::State::kDone:
      return BeginExchange();
    case RequestReader::State::kFailed:
      ++server_->counters_.bad_requests;
      return RefuseRequest(reader_->error_status(), reader_->error());
    case RequestReader::State::kReading:
      if (reader_->HasHeader() && !std::exchange(header_checked_, true)) {
        const auto refusal = server_->check_header_(reader_->Header());
        if (refusal) return RefuseRequest(*refusal);
      }
      if (reader_->WantsContinue() && !said_continue_) {
        said_continue_ = true;
        Append("HTTP/1.1 100 Continue\r\n\r\n");
        WriteMore();
      }
  }
}

void Connection::BeginExchange() {
  HttpRequest request = reader_->Take();
  request.peer = transport_->peer();
  reader_.reset();
  header_checked_ = false;
  said_continue_ = false;
  request_bytes_ = 0;
  keep_alive_ = request.keep_alive && !draining_;
  exchange_ =
      std::make_shared<Exchange>(shared_from_this(), std::move(request),
                                 std::exchange(body_share_, MemoryBudget::Share(server_->bodies_)));
  ++server_->counters_.exchanges;
  server_->handler_(exchange_);
}

void Connection::RefuseRequest(int status, const std::string& message) {
  RefuseRequest(server_->error_body_(status, message));
}

void Connection::RefuseRequest(const HttpResponse& response) {
  reader_.reset();
  input_ = {};
  body_share_ = {};
  closing_after_write_ = true;
  Append(ResponseHead(response, {}, true, false, static_cast<long long>(response.body.size())));
  Append(response.body);
  WriteMore();
  ReadMore();
}

void Connection::OnAttach(Exchange& exchange, std::shared_ptr<Producer> producer) {
  if (closed_ || exchange_.get() != &exchange) return producer->Abandon();
  exchange.producer_ = std::move(producer);
  Advance(exchange);
}

void Connection::OnRespond(Exchange& exchange, const HttpResponse& response) {
  if (closed_ || exchange_.get() != &exchange) return;
  SendResponse(exchange, response);
}

void Connection::OnWake(Exchange& exchange) {
  if (closed_ || exchange_.get() != &exchange) return;
  Advance(exchange);
}

void Connection::Advance(Exchange& exchange) {
  if (exchange.producer_ == nullptr || exchange.done_ || advancing_) return;
  advancing_ = true;
  try {
    // A copy, because the end of the answer resets exchange.producer_.
    const std::shared_ptr<Producer> producer = exchange.producer_;
    producer->Advance();
  } catch (const std::exception& error) {
    LogError("server: answering {} failed: {}", exchange.request_.path, error.what());
    advancing_ = false;
    return Close();
  }
  advancing_ = false;
  WriteMore();
}

void Connection::SendResponse(Exchange& exchange, const HttpResponse& response) {
  LC_CHECK(!exchange.head_sent_, "a request is answered twice");
  exchange.head_sent_ = true;
  exchange.done_ = true;
  exchange.status_ = response.status;
  Append(ResponseHead(response, exchange.headers_, exchange.request_.http11, keep_alive_,
                      static_cast<long long>(response.body.size())));
  if (exchange.request_.method != "HEAD" && response.status != 204) Append(response.body);
  WriteMore();
}

void Connection::BeginStream(Exchange& exchange, const HttpResponse& head) {
  LC_CHECK(!exchange.head_sent_, "a request is answered twice");
  exchange.head_sent_ = true;
  exchange.streaming_ = true;
  exchange.status_ = head.status;
  exchange.chunked_ = exchange.request_.http11;
  // In HTTP/1.0 only closing the connection ends a body of unknown length.
  if (!exchange.chunked_) keep_alive_ = false;
  Append(ResponseHead(head, exchange.headers_, exchange.request_.http11, keep_alive_, -1));
}

void Connection::Append(std::string_view bytes) {
  if (unsent() == 0) last_write_ = Clock::now();
  queued_ += bytes;
}

void Connection::AppendChunk(const Exchange& exchange, std::string_view bytes) {
  if (bytes.empty()) return;
  if (!exchange.chunked_) return Append(bytes);
  Append(fmt::format("{:x}\r\n", bytes.size()));
  queued_ += bytes;
  queued_ += "\r\n";
}

void Connection::EndStream(Exchange& exchange) {
  if (exchange.chunked_) Append("0\r\n\r\n");
  exchange.done_ = true;
  exchange.streaming_ = false;
}

bool Connection::Writable() const { return !closed_ && unsent() < kMaxUnsent; }

void Connection::WriteMore() {
  if (closed_ || writing_ || handshaking_) return;
  if (sent_ == output_.size()) {
    output_ = std::exchange(queued_, {});
    sent_ = 0;
  }
  if (output_.empty()) {
    if (exchange_ != nullptr && exchange_->done_ && !advancing_) FinishExchange();
    if (!closed_ && closing_after_write_ && unsent() == 0 && !lingering_) Linger();
    return;
  }
  writing_ = true;
  transport_->Write(
      output_.data() + sent_, output_.size() - sent_,
      [self = shared_from_this()](bool ok, size_t bytes) { self->OnWrite(ok, bytes); });
}

void Connection::OnWrite(bool ok, size_t bytes) {
  writing_ = false;
  if (closed_) return;
  if (!ok) return Close();
  sent_ += bytes;
  last_write_ = Clock::now();
  if (exchange_ != nullptr && !exchange_->done_ && exchange_->streaming_ && Writable()) {
    Advance(*exchange_);
    if (closed_) return;
  }
  WriteMore();
}

void Connection::FinishExchange() {
  const auto exchange = std::move(exchange_);
  exchange_ = nullptr;
  exchange->producer_ = nullptr;
  --server_->counters_.exchanges;
  server_->finished_(*exchange);
  if (!keep_alive_) return Linger();
  waiting_since_ = Clock::now();
  request_bytes_ = 0;
  if (!Admit(input_.size())) return;
  Parse();
  ReadMore();
}

void Connection::Linger() {
  lingering_ = true;
  last_write_ = Clock::now();
  input_.clear();
  transport_->ShutdownSend();
  ReadMore();
}

}  // namespace litecache::server

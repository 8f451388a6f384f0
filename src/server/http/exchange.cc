#include "server/http/exchange.h"

#include "base/error.h"
#include "server/http/connection.h"

namespace litecache::server {

Exchange::Exchange(std::shared_ptr<Connection> connection, HttpRequest request,
                   MemoryBudget::Share body_share)
    : request_(std::move(request)),
      body_share_(std::move(body_share)),
      connection_(std::move(connection)) {}
Exchange::~Exchange() = default;

void Exchange::Respond(HttpResponse response) {
  connection_->loop().Post([self = shared_from_this(), response = std::move(response)] {
    self->connection_->OnRespond(*self, response);
  });
}

void Exchange::Attach(std::shared_ptr<Producer> producer) {
  connection_->loop().Post([self = shared_from_this(), producer = std::move(producer)]() mutable {
    self->connection_->OnAttach(*self, std::move(producer));
  });
}

void Exchange::Wake() {
  // One step of the engine may produce chunks many times before a slow loop reads them: one pending
  // wake-up is enough.
  if (woken_.exchange(true)) return;
  connection_->loop().Post([self = shared_from_this()] {
    self->woken_.store(false);
    self->connection_->OnWake(*self);
  });
}

void Exchange::Finish(const HttpResponse& response) { connection_->SendResponse(*this, response); }

void Exchange::BeginStream(const HttpResponse& head, std::string keep_alive) {
  keep_alive_ = std::move(keep_alive);
  connection_->BeginStream(*this, head);
}

void Exchange::Write(std::string_view bytes) {
  LC_CHECK(streaming_ && !done_);
  connection_->AppendChunk(*this, bytes);
}

void Exchange::EndStream() { connection_->EndStream(*this); }

bool Exchange::Writable() const { return connection_->Writable(); }

}  // namespace litecache::server

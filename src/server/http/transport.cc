#include "server/http/transport.h"

#include <openssl/err.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "base/error.h"
#include "base/logging.h"

namespace litecache::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// `alive` is kept until the operation has ended.
auto Adapt(Transport::Handler done, std::shared_ptr<void> alive) {
  return [done = std::move(done), alive = std::move(alive)](const error_code& error, size_t bytes) {
    done(!error, bytes);
  };
}

std::string PeerOf(const tcp::socket& socket) {
  error_code error;
  const tcp::endpoint endpoint = socket.remote_endpoint(error);
  return error ? "" : endpoint.address().to_string(error);
}

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(tcp::socket socket)
      : Transport(PeerOf(socket)), socket_(std::move(socket)) {}

  void Handshake(std::function<void(bool)> done) override {
    asio::post(socket_.get_executor(), [done = std::move(done)] { done(true); });
  }
  void Read(char* data, size_t size, Handler done) override {
    socket_.async_read_some(asio::buffer(data, size), Adapt(std::move(done), {}));
  }
  void Write(const char* data, size_t size, Handler done) override {
    socket_.async_write_some(asio::buffer(data, size), Adapt(std::move(done), {}));
  }
  void ShutdownSend() override {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }
  void Close() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  tcp::socket socket_;
};

class TlsTransport final : public Transport {
 public:
  TlsTransport(tcp::socket socket, asio::ssl::context& context)
      : Transport(PeerOf(socket)), stream_(std::make_shared<Stream>(std::move(socket), context)) {}

  void Handshake(std::function<void(bool)> done) override {
    stream_->async_handshake(
        asio::ssl::stream_base::server,
        [done = std::move(done), stream = stream_](const error_code& error) { done(!error); });
  }
  void Read(char* data, size_t size, Handler done) override {
    stream_->async_read_some(asio::buffer(data, size), Adapt(std::move(done), stream_));
  }
  void Write(const char* data, size_t size, Handler done) override {
    stream_->async_write_some(asio::buffer(data, size), Adapt(std::move(done), stream_));
  }
  void ShutdownSend() override {
    stream_->async_shutdown([stream = stream_](const error_code&) {});
  }
  void Close() override {
    error_code ignored;
    stream_->next_layer().close(ignored);
  }

 private:
  using Stream = asio::ssl::stream<tcp::socket>;
  std::shared_ptr<Stream> stream_;
};

}  // namespace

struct TlsContext::Impl {
  asio::ssl::context context{asio::ssl::context::tls_server};
};

TlsContext::TlsContext(const std::filesystem::path& certificate, const std::filesystem::path& key)
    : impl_(std::make_unique<Impl>()) {
  auto& context = impl_->context;
  context.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                      asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                      asio::ssl::context::no_tlsv1_1);
  error_code error;
  context.use_certificate_chain_file(certificate.string(), error);
  if (error) {
    throw FileError("{}: not a readable certificate in PEM format: {}", certificate.string(),
                    error.message());
  }
  context.use_private_key_file(key.string(), asio::ssl::context::pem, error);
  if (error) {
    throw FileError("{}: not a readable private key in PEM format that belongs to {}: {}",
                    key.string(), certificate.string(), error.message());
  }
  if (SSL_CTX_check_private_key(context.native_handle()) != 1) {
    throw FileError("{}: this private key does not belong to the certificate {}", key.string(),
                    certificate.string());
  }
}
TlsContext::~TlsContext() = default;

struct Listener::Impl : std::enable_shared_from_this<Listener::Impl> {
  Impl(asio::io_context& io, TlsContext* tls_context, OnAccept callback)
      : context(io), acceptor(io), retry(io), tls(tls_context), on_accept(std::move(callback)) {}

  void Accept() {
    acceptor.async_accept([self = shared_from_this()](const error_code& error, tcp::socket socket) {
      if (!self->acceptor.is_open()) return;
      if (!error) {
        self->Hand(std::move(socket));
        self->Accept();
        return;
      }
      // Usually out of file descriptors: the connection stays in the queue, and accepting is
      // retried later.
      LogWarning("server: accepting a connection failed: {}", error.message());
      self->retry.expires_after(std::chrono::milliseconds(100));
      self->retry.async_wait([self](const error_code& cancelled) {
        if (!cancelled && self->acceptor.is_open()) self->Accept();
      });
    });
  }

  void Hand(tcp::socket socket) {
    error_code ignored;
    // The event of a token must not wait for the acknowledgement of the one before (Nagle's
    // algorithm).
    socket.set_option(tcp::no_delay(true), ignored);
    if (tls != nullptr) {
      on_accept(std::make_unique<TlsTransport>(std::move(socket), tls->impl().context));
    } else {
      on_accept(std::make_unique<PlainTransport>(std::move(socket)));
    }
  }

  asio::io_context& context;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  TlsContext* tls;
  OnAccept on_accept;
  std::string address;
  uint16_t port = 0;
};

Listener::Listener(asio::io_context& context, const std::string& host, uint16_t port,
                   TlsContext* tls, OnAccept on_accept)
    : impl_(std::make_shared<Impl>(context, tls, std::move(on_accept))) {
  error_code error;
  const auto found =
      tcp::resolver(context).resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    throw Error(fmt::format("--host {}: not an address of this machine's network interfaces: {}",
                            host, error.message()));
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  auto& acceptor = impl_->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    throw Error(fmt::format("cannot listen on {} port {}: {}; --host and --port choose another",
                            host, port, error.message()));
  }
  impl_->address = endpoint.address().to_string();
  impl_->port = acceptor.local_endpoint().port();
}
Listener::~Listener() {
  // The callback's owner may be destroyed before the loop drops the pending operation.
  error_code ignored;
  impl_->acceptor.close(ignored);
}

const std::string& Listener::address() const { return impl_->address; }
uint16_t Listener::port() const { return impl_->port; }
void Listener::Start() { impl_->Accept(); }
void Listener::Close() {
  error_code ignored;
  impl_->acceptor.close(ignored);
  impl_->retry.cancel();
}

}  // namespace litecache::server

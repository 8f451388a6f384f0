// A client's byte stream: TCP, or TLS over TCP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace boost::asio {
class io_context;
}

namespace litecache::server {

// Used by the loop's thread only; handlers are called on it, never from inside the call that
// started them. At most one read and one write at a time. A handler keeps what it captures alive
// until it has run: Close() makes all handlers run with ok = false.
class Transport {
 public:
  using Handler = std::function<void(bool ok, size_t bytes)>;
  // peer: the client's address, without a port.
  explicit Transport(std::string peer) : peer_(std::move(peer)) {}
  virtual ~Transport() = default;
  const std::string& peer() const { return peer_; }
  // Called before anything else.
  virtual void Handshake(std::function<void(bool ok)> done) = 0;
  // Reads some bytes; not ok also at the end of the stream.
  virtual void Read(char* data, size_t size, Handler done) = 0;
  // Writes some of the bytes.
  virtual void Write(const char* data, size_t size, Handler done) = 0;
  // Tells the client that nothing more will be sent.
  virtual void ShutdownSend() = 0;
  virtual void Close() = 0;

 private:
  std::string peer_;
};

// The certificate and key for TLS.
class TlsContext {
 public:
  // PEM files: the certificate with its chain, and its private key. Throws FileError.
  TlsContext(const std::filesystem::path& certificate, const std::filesystem::path& key);
  ~TlsContext();
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Accepts connections.
class Listener {
 public:
  // Called on the loop's thread.
  using OnAccept = std::function<void(std::unique_ptr<Transport>)>;

  // Binds and listens at once; throws an Error that names the address and what to do. port 0: any
  // free one. `tls` may be null, and must outlive all connections.
  Listener(boost::asio::io_context& context, const std::string& host, uint16_t port,
           TlsContext* tls, OnAccept on_accept);
  ~Listener();

  // The numeric address, such as "127.0.0.1", and the actual port.
  const std::string& address() const;
  uint16_t port() const;
  // Called on the loop's thread, or before it runs.
  void Start();
  // Called on the loop's thread.
  void Close();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace litecache::server

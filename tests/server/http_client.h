// A client made for bad manners: raw bytes over a TCP connection, and HTTP in the plainest way.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::testing {

// A connection to 127.0.0.1.
class Client {
 public:
  // receive_buffer > 0: as small as the system allows, for readers that are slow.
  explicit Client(uint16_t port, int receive_buffer = 0);
  ~Client();
  Client(Client&& other) noexcept;
  Client& operator=(Client&& other) noexcept;

  // False when the other side has closed.
  bool Send(std::string_view bytes);
  // What has arrived within the limit; "" at the end, or when nothing came (see closed()).
  std::string Receive(std::chrono::milliseconds limit = std::chrono::seconds(60));
  // Receives until `text` is part of everything received so far, which is returned; fails the test
  // when the connection ends before.
  std::string ReceiveUntil(std::string_view text);
  // Everything until the server closes.
  std::string ReceiveAll();
  bool closed() const { return closed_; }
  void Close();
  // Closes with a reset instead of an orderly end.
  void Reset();
  // Says that nothing more will be sent.
  void ShutdownSend();

 private:
  int socket_ = -1;
  bool closed_ = false;
  std::string received_;
};

struct Reply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks put together
};

// Bytes of an answer, complete.
Reply ParseReply(const std::string& bytes);

std::string RequestText(std::string_view method, std::string_view path, std::string_view body = "",
                        const std::vector<std::string>& headers = {});
// One request over a connection of its own.
Reply Call(uint16_t port, std::string_view method, std::string_view path,
           std::string_view body = "", const std::vector<std::string>& headers = {});

// The data of a stream's events, in order.
std::vector<std::string> Events(const std::string& body);

}  // namespace litecache::testing

// A simple client for misbehaviour tests: raw bytes over a TCP connection, and plain HTTP.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::testing {

// How long a test waits before it fails. ThreadSanitizer slows the engine down many times.
#ifdef __SANITIZE_THREAD__
inline constexpr std::chrono::seconds kPatience{300};
#else
inline constexpr std::chrono::seconds kPatience{60};
#endif

// A connection to 127.0.0.1.
class Client {
 public:
  // receive_buffer > 0: as small as the system allows, to simulate slow readers.
  explicit Client(uint16_t port, int receive_buffer = 0);
  ~Client();
  Client(Client&& other) noexcept;
  Client& operator=(Client&& other) noexcept;

  // False if the other side has closed.
  bool Send(std::string_view bytes);
  // The data that arrive within the limit; "" at the end, or if none arrive (see closed()).
  std::string Receive(std::chrono::milliseconds limit = kPatience);
  // Receives until everything received so far contains `text`, and returns it; fails the test if
  // the connection ends before.
  std::string ReceiveUntil(std::string_view text);
  // Receives everything until the server closes.
  std::string ReceiveAll();
  bool closed() const { return closed_; }
  void Close();
  // Closes with a reset instead of a normal end.
  void Reset();
  // Tells the server that nothing more will be sent.
  void ShutdownSend();

 private:
  int socket_ = -1;
  bool closed_ = false;
  std::string received_;
};

struct Reply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // with chunks joined
};

// Parses a complete answer.
Reply ParseReply(const std::string& bytes);

std::string RequestText(std::string_view method, std::string_view path, std::string_view body = "",
                        const std::vector<std::string>& headers = {});
// One request over a separate connection.
Reply Call(uint16_t port, std::string_view method, std::string_view path,
           std::string_view body = "", const std::vector<std::string>& headers = {});

// The data of a stream's events, in order.
std::vector<std::string> Events(const std::string& body);

}  // namespace litecache::testing

#include "server/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace litecache::testing {

Client::Client(uint16_t port, int receive_buffer) {
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    close(socket_);
    throw std::runtime_error("cannot connect");
  }
}

Client::~Client() { Close(); }

Client::Client(Client&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      closed_(other.closed_),
      received_(std::move(other.received_)) {}

Client& Client::operator=(Client&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(closed_, other.closed_);
  received_.swap(other.received_);
  return *this;
}

void Client::Close() {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
}

void Client::Reset() {
  const linger now{1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  Close();
}

void Client::ShutdownSend() { shutdown(socket_, SHUT_WR); }

bool Client::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

std::string Client::Receive(std::chrono::milliseconds limit) {
  pollfd fd{socket_, POLLIN, 0};
  if (closed_ || poll(&fd, 1, static_cast<int>(limit.count())) <= 0) return "";
  std::string bytes(1 << 16, '\0');
  const ssize_t count = recv(socket_, bytes.data(), bytes.size(), 0);
  closed_ = count <= 0;
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  received_ += bytes;
  return bytes;
}

std::string Client::ReceiveUntil(std::string_view text) {
  while (received_.find(text) == std::string::npos) {
    if (Receive().empty()) {
      ADD_FAILURE() << "waiting for '" << text << "', got: " << received_;
      break;
    }
  }
  return received_;
}

std::string Client::ReceiveAll() {
  while (!Receive().empty()) {
  }
  EXPECT_TRUE(closed_) << "the server keeps the connection open";
  return received_;
}

std::string RequestText(std::string_view method, std::string_view path, std::string_view body,
                        const std::vector<std::string>& headers) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n", method, path);
  bool typed = false;
  for (const auto& header : headers) {
    text += header + "\r\n";
    typed = typed || header.starts_with("Content-Type:");
  }
  if (method == "POST") {
    if (!typed) text += "Content-Type: application/json\r\n";
    text += fmt::format("Content-Length: {}\r\n", body.size());
  }
  return text + "\r\n" + std::string(body);
}

Reply ParseReply(const std::string& bytes) {
  Reply reply;
  const size_t head = bytes.find("\r\n\r\n");
  if (head == std::string::npos || !bytes.starts_with("HTTP/1.1 ")) {
    ADD_FAILURE() << "no HTTP answer: " << bytes;
    return reply;
  }
  reply.status = std::stoi(bytes.substr(9, 3));
  for (size_t at = bytes.find("\r\n") + 2; at < head;) {
    const size_t end = bytes.find("\r\n", at);
    const size_t colon = bytes.find(": ", at);
    std::string name = bytes.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    reply.headers[name] = bytes.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  reply.body = bytes.substr(head + 4);
  if (!reply.headers.contains("transfer-encoding")) return reply;
  std::string joined;
  for (size_t at = 0; at < reply.body.size();) {
    const size_t end = reply.body.find("\r\n", at);
    const size_t size = std::stoul(reply.body.substr(at, end - at), nullptr, 16);
    if (size == 0) break;
    joined += reply.body.substr(end + 2, size);
    at = end + 2 + size + 2;
  }
  reply.body = joined;
  return reply;
}

Reply Call(uint16_t port, std::string_view method, std::string_view path, std::string_view body,
           const std::vector<std::string>& headers) {
  Client client(port);
  auto all = headers;
  all.push_back("Connection: close");
  client.Send(RequestText(method, path, body, all));
  return ParseReply(client.ReceiveAll());
}

std::vector<std::string> Events(const std::string& body) {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = std::min(body.find('\n', at), body.size());
    const std::string line = body.substr(at, end - at);
    if (line.starts_with("data: ")) events.push_back(line.substr(6));
    at = end + 1;
  }
  return events;
}

}  // namespace litecache::testing

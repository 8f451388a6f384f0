#include "server/http/request_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <iterator>
#include <utility>

#include "base/units.h"

namespace litecache::server {
namespace {

namespace http = boost::beast::http;

std::string ToString(boost::beast::string_view text) { return {text.data(), text.size()}; }

std::string Lower(boost::beast::string_view text) {
  std::string result = ToString(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return result;
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// An invalid escape is kept as it is: no route contains a '%'.
std::string PercentDecode(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      const int high = HexValue(text[i + 1]), low = HexValue(text[i + 2]);
      if (high >= 0 && low >= 0) {
        result += static_cast<char>(high * 16 + low);
        i += 2;
        continue;
      }
    }
    result += text[i];
  }
  return result;
}

// Detects what proxies and servers may interpret differently (request smuggling): where one of them
// ends the request, the other must not read the rest as a second request. Returns "" if the request
// is unambiguous, else what is wrong.
template <typename Message>
std::string Ambiguity(const Message& message) {
  const auto count = [&](http::field name) {
    const auto [begin, end] = message.equal_range(name);
    return std::distance(begin, end);
  };
  if (count(http::field::host) > 1) return "it has more than one Host header";
  if (count(http::field::content_length) > 1) return "it has more than one Content-Length header";
  const auto codings = count(http::field::transfer_encoding);
  if (codings == 0) return "";
  if (codings > 1 || Lower(message[http::field::transfer_encoding]) != "chunked") {
    return "the only supported Transfer-Encoding is a single 'chunked'";
  }
  if (count(http::field::content_length) > 0) {
    return "it has both Content-Length and Transfer-Encoding";
  }
  return message.version() < 11 ? "HTTP/1.0 has no Transfer-Encoding" : "";
}

}  // namespace

struct RequestReader::Impl {
  http::request_parser<http::string_body> parser;
  Limits limits;
  bool header_checked = false;
  size_t used = 0;  // bytes of the request as sent

  // Chunks of 1 KiB add 6 bytes each; clients need nothing else beyond header and body (chunk
  // extensions, trailers).
  size_t most_bytes() const {
    return limits.header_bytes + limits.body_bytes + limits.body_bytes / 64 + kFraming;
  }
  static constexpr size_t kFraming = 16 << 10;
};

RequestReader::RequestReader(const Limits& limits) : impl_(std::make_unique<Impl>()) {
  impl_->limits = limits;
  impl_->parser.header_limit(static_cast<std::uint32_t>(limits.header_bytes));
  impl_->parser.body_limit(limits.body_bytes);
  impl_->parser.eager(true);
}
RequestReader::~RequestReader() = default;
RequestReader::RequestReader(RequestReader&&) noexcept = default;
RequestReader& RequestReader::operator=(RequestReader&&) noexcept = default;

void RequestReader::Fail(int status, std::string message) {
  state_ = State::kFailed;
  error_status_ = status;
  error_ = std::move(message);
}

size_t RequestReader::Feed(std::string_view bytes) {
  size_t used = 0;
  auto& parser = impl_->parser;
  while (state_ == State::kReading && used < bytes.size()) {
    boost::beast::error_code error;
    const size_t count =
        parser.put(boost::asio::buffer(bytes.data() + used, bytes.size() - used), error);
    used += count;
    impl_->used += count;
    if (parser.is_header_done() && !std::exchange(impl_->header_checked, true)) {
      if (const auto what = Ambiguity(parser.get()); !what.empty()) {
        Fail(400, fmt::format("this request is ambiguous: {}", what));
        return used;
      }
    }
    const size_t waiting = bytes.size() - used;
    const bool framing = error == http::error::need_more && parser.is_header_done();
    if (impl_->used + waiting > impl_->most_bytes() ||
        (framing && waiting > impl_->limits.header_bytes)) {
      Fail(413, "the request is too large: too many or too large chunk extensions or trailers");
      return used;
    }
    if (error == http::error::need_more) return used;
    if (error == http::error::bad_version) {
      Fail(505, "only HTTP/1.1 and HTTP/1.0 are supported");
    } else if (error == http::error::header_limit) {
      Fail(431, fmt::format("the request's header is larger than {}",
                            FormatBytes(impl_->limits.header_bytes)));
    } else if (error == http::error::body_limit) {
      Fail(413, fmt::format("the request's body is larger than {} (--max-body)",
                            FormatBytes(impl_->limits.body_bytes)));
    } else if (error) {
      Fail(400, fmt::format("this is not an HTTP request: {}", error.message()));
    } else if (parser.is_done()) {
      const unsigned version = parser.get().version();
      if (version != 10 && version != 11) {
        Fail(505, "only HTTP/1.1 and HTTP/1.0 are supported");
      } else {
        state_ = State::kDone;
      }
    } else if (count == 0) {
      return used;
    }
  }
  return used;
}

bool RequestReader::HasHeader() const {
  return state_ == State::kReading && impl_->parser.is_header_done();
}

bool RequestReader::WantsContinue() const {
  return HasHeader() && Lower(impl_->parser.get()[http::field::expect]) == "100-continue";
}

HttpRequest RequestReader::Header() const { return MakeRequest(); }

HttpRequest RequestReader::Take() {
  HttpRequest request = MakeRequest();
  request.body = std::move(impl_->parser.get().body());
  return request;
}

HttpRequest RequestReader::MakeRequest() const {
  const auto& message = impl_->parser.get();
  HttpRequest request;
  request.method = ToString(message.method_string());
  const std::string target = ToString(message.target());
  const size_t question = target.find('?');
  request.path = PercentDecode(std::string_view(target).substr(0, question));
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(Lower(field.name_string()), ToString(field.value()));
  }
  request.http11 = message.version() == 11;
  request.keep_alive = message.keep_alive();
  return request;
}

}  // namespace litecache::server

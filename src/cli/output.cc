#include "cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace litecache::cli {
namespace {

constexpr size_t kBufferBytes = 1 << 16;

}  // namespace

Output::Output(const std::string& path) {
  if (path.empty() || path == "-") return;
  name_ = path;
  descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) Fail(errno);
}

Output::~Output() {
  if (descriptor_ > 1) close(descriptor_);
}

void Output::Write(std::string_view text) {
  buffer_ += text;
  if (buffer_.size() >= kBufferBytes) Flush();
}

void Output::Flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t written = write(descriptor_, buffer_.data() + done, buffer_.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno != EINTR) {
      const int error = errno;
      buffer_.clear();
      Fail(error);
    }
  }
  buffer_.clear();
}

void Output::Close() {
  Flush();
  if (descriptor_ <= 1) return;
  if (close(std::exchange(descriptor_, -1)) != 0) Fail(errno);
}

void Output::Fail(int error) const {
  if (error == EPIPE) throw OutputClosed();
  throw FileError("{}: cannot write: {}", name_, std::strerror(error));
}

std::streamsize OutputStreamBuffer::xsputn(const char* text, std::streamsize size) {
  output_.Write({text, static_cast<size_t>(size)});
  return size;
}

OutputStreamBuffer::int_type OutputStreamBuffer::overflow(int_type c) {
  if (c == traits_type::eof()) return traits_type::not_eof(c);
  const char byte = traits_type::to_char_type(c);
  output_.Write({&byte, 1});
  return c;
}

int OutputStreamBuffer::sync() {
  output_.Flush();
  return 0;
}

}  // namespace litecache::cli

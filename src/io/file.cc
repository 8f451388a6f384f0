#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "io/other_formats.h"

namespace litecache::io {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Removes the temporary file unless it was renamed into place.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }
  void Keep() { path_.clear(); }

 private:
  std::string path_;
};

}  // namespace

std::string ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes) {
  // O_NONBLOCK: opening a FIFO by mistake must not hang.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw FileError("{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    throw FileError("{}: cannot read: {}", path.string(), std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) throw FileError("{}: is not a regular file", path.string());
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size > max_bytes) {
    throw FileError("{}: has {}, at most {} are expected here", path.string(), FormatBytes(size),
                    FormatBytes(max_bytes));
  }
  std::string text(size, '\0');
  uint64_t done = 0;
  while (done < size) {
    const ssize_t count = ::read(file.get(), text.data() + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw FileError("{}: cannot read: {}", path.string(), std::strerror(errno));
    if (count == 0) throw FileError("{}: became shorter while it was read", path.string());
    done += static_cast<uint64_t>(count);
  }
  RefuseLfsPointer(text, path.string());
  return text;
}

void WriteFileAtomically(const std::filesystem::path& path, std::string_view contents) {
  const auto fail = [&](const char* what) {
    throw FileError("{}: cannot {}: {}", path.string(), what, std::strerror(errno));
  };
  std::string name = path.string() + ".XXXXXX";
  FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.get() < 0) fail("create a temporary file beside it");
  TemporaryFile temporary(name);

  // mkostemp creates mode 0600; an output file gets the mode that open() would set, or keeps its
  // own.
  struct stat old {};
  const mode_t mask = ::umask(0);
  ::umask(mask);
  const bool exists = ::stat(path.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) {
    throw FileError("{}: is not a regular file, not replaced", path.string());
  }
  if (::fchmod(file.get(), exists ? (old.st_mode & 07777) : (0666 & ~mask)) != 0) {
    fail("set the permissions");
  }

  size_t done = 0;
  while (done < contents.size()) {
    const ssize_t count = ::write(file.get(), contents.data() + done, contents.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write");
    done += static_cast<size_t>(count);
  }
  // Some file systems report a full disk only here.
  if (::fsync(file.get()) != 0) fail("write");
  if (::close(file.Release()) != 0) fail("write");
  if (::rename(temporary.path().c_str(), path.c_str()) != 0) fail("replace");
  temporary.Keep();
}

}  // namespace litecache::io

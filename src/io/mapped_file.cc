#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace litecache::io {

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a FIFO by mistake must not hang.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw FileError("{}: cannot open: {}", path_.string(), std::strerror(errno));
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    throw FileError("{}: is not a regular file", path_.string());
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ > 0) {
    void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      throw FileError("{}: cannot map into memory: {}", path_.string(), std::strerror(error));
    }
    data_ = static_cast<std::byte*>(data);
    // Advice only: reads are correct without it.
    ::madvise(data_, size_, MADV_HUGEPAGE);
  }
  ::close(fd);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  MappedFile moved(std::move(other));
  Swap(moved);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void MappedFile::Swap(MappedFile& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
}

void MappedFile::Prefault(const std::function<void(size_t bytes)>& advance) const {
  // Large enough that the disk reads ahead, small enough that a progress bar moves and Ctrl-C
  // works.
  constexpr size_t kPiece = size_t{32} << 20;
  for (size_t begin = 0; begin < size_; begin += kPiece) {
    const size_t count = std::min(kPiece, size_ - begin);
    std::byte* piece = data_ + begin;
    if (begin + count < size_) {
      ::madvise(piece + count, std::min(kPiece, size_ - begin - count), MADV_WILLNEED);
    }
    int result = 0;
    int error = 0;
#ifdef MADV_POPULATE_READ
    do {
      result = ::madvise(piece, count, MADV_POPULATE_READ);
      error = errno;
    } while (result != 0 && error == EINTR);
#else
    result = -1;
    error = EINVAL;
#endif
    // EFAULT and EIO: a read error that would be a SIGBUS at the first access. Any other error
    // means that the kernel does not support the advice (before 5.14); then the first pass faults
    // the pages in.
    if (result != 0 && (error == EFAULT || error == EIO)) {
      throw FileError("{}: cannot read bytes {} to {}: {}", path_.string(), begin, begin + count,
                      std::strerror(error));
    }
    advance(count);
  }
}

}  // namespace litecache::io

#include "io/tensor_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace litecache::io {

TensorWriter::TensorWriter(const std::filesystem::path& path)
    : path_(path),
      descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) Fail("create");
}

TensorWriter::~TensorWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void TensorWriter::Place(const Tensor& tensor, uint64_t begin) {
  LC_CHECK(places_.emplace(tensor.name, Range{begin, tensor.bytes}).second,
           "tensor '{}' is added twice", tensor.name);
}

void TensorWriter::WriteFront(std::span<const std::byte> bytes) {
  for (auto& [name, place] : places_) place.begin += bytes.size();
  Put(0, bytes);
}

void TensorWriter::Write(const std::string& name, uint64_t offset,
                         std::span<const std::byte> bytes) {
  const Range& place = places_.at(name);
  LC_CHECK(offset + bytes.size() <= place.bytes, "tensor '{}' has {} bytes", name, place.bytes);
  Put(place.begin + offset, bytes);
}

void TensorWriter::Extend(uint64_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) Fail("write");
}

void TensorWriter::Put(uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) Fail("write");
    bytes = bytes.subspan(static_cast<size_t>(count));
    at += static_cast<uint64_t>(count);
  }
}

void TensorWriter::Close() {
  if (::fsync(descriptor_) != 0) Fail("write");
  if (::close(std::exchange(descriptor_, -1)) != 0) Fail("write");
}

void TensorWriter::Fail(const char* what) const {
  throw FileError("{}: cannot {}: {}", path_.string(), what, std::strerror(errno));
}

}  // namespace litecache::io

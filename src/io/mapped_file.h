// A file mapped into memory, read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

namespace litecache::io {

// Owns the mapping; move-only. The file must not be truncated while it is mapped.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws FileError: missing, not a regular file, unreadable.
  explicit MappedFile(std::filesystem::path path);
  MappedFile(MappedFile&& other) noexcept { Swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Reads the whole file into memory, so that the first pass over the weights does not wait for one
  // page at a time. advance(bytes) is called after every piece and may throw to cancel. Throws
  // FileError on a read error.
  void Prefault(const std::function<void(size_t bytes)>& advance) const;

 private:
  void Swap(MappedFile& other) noexcept;

  std::filesystem::path path_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace litecache::io

// A directory that appears under its name once it is complete.
#pragma once

#include <cstdint>
#include <filesystem>

namespace litecache::io {

class UnfinishedDirectory {
 public:
  // Creates path() beside `output`, which must not exist, or be an empty directory. file: `output`
  // becomes a file, and must not exist. Throws FileError.
  explicit UnfinishedDirectory(const std::filesystem::path& output, bool file = false);
  // Removes path() unless it is finished.
  ~UnfinishedDirectory();
  UnfinishedDirectory(const UnfinishedDirectory&) = delete;
  UnfinishedDirectory& operator=(const UnfinishedDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Throws FileError where the disk has less room than the weights take.
  void RequireSpace(uint64_t bytes) const;
  // The file that becomes `output`.
  std::filesystem::path file() const { return path_ / output_.filename(); }
  // Renames path() or file() to `output`. Throws FileError.
  void Finish();

 private:
  std::filesystem::path output_, path_;
  bool is_file_ = false;
};

}  // namespace litecache::io

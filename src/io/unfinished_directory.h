// A directory that appears under its name once it is complete.
#pragma once

#include <filesystem>

namespace litecache::io {

class UnfinishedDirectory {
 public:
  // Creates path() beside `output`, which must not exist, or be an empty directory. Throws
  // FileError.
  explicit UnfinishedDirectory(const std::filesystem::path& output);
  // Removes path() unless it is finished.
  ~UnfinishedDirectory();
  UnfinishedDirectory(const UnfinishedDirectory&) = delete;
  UnfinishedDirectory& operator=(const UnfinishedDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Renames path() to `output`. Throws FileError.
  void Finish();

 private:
  std::filesystem::path output_, path_;
};

}  // namespace litecache::io

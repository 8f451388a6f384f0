#include "io/unfinished_directory.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/units.h"

namespace litecache::io {

namespace fs = std::filesystem;

UnfinishedDirectory::UnfinishedDirectory(const fs::path& output, bool file)
    : output_(output.lexically_normal()), is_file_(file) {
  if (!output_.has_filename()) output_ = output_.parent_path();
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(output_, ignored)) &&
      (file || !fs::is_directory(output_, ignored) || !fs::is_empty(output_, ignored))) {
    throw FileError("{}: exists already; name a new {}", output_.string(),
                    file ? "file" : "directory or an empty one");
  }
  std::string name = output_.string() + ".unfinished-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) {
    throw FileError("{}: cannot create a directory beside it: {}", output_.string(),
                    std::strerror(errno));
  }
  path_ = name;
  // mkdtemp creates mode 0700.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::chmod(path_.c_str(), 0777 & ~mask);
}

UnfinishedDirectory::~UnfinishedDirectory() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void UnfinishedDirectory::RequireSpace(uint64_t bytes) const {
  std::error_code unknown;
  const fs::space_info space = fs::space(path_, unknown);
  if (unknown || space.available >= bytes) return;
  throw FileError("{}: the weights take {}, but the disk has only {} left", path_.string(),
                  FormatBytes(bytes), FormatBytes(space.available));
}

void UnfinishedDirectory::Finish() {
  std::error_code error;
  fs::rename(is_file_ ? file() : path_, output_, error);
  if (error) throw FileError("{}: cannot create: {}", output_.string(), error.message());
  if (is_file_) fs::remove(path_, error);
  path_.clear();
}

}  // namespace litecache::io

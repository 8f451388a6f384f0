#include "io/unfinished_directory.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "base/error.h"

namespace litecache::io {

namespace fs = std::filesystem;

UnfinishedDirectory::UnfinishedDirectory(const fs::path& output)
    : output_(output.lexically_normal()) {
  if (!output_.has_filename()) output_ = output_.parent_path();
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(output_, ignored)) &&
      !(fs::is_directory(output_, ignored) && fs::is_empty(output_, ignored))) {
    throw FileError("{}: exists already; name a new directory or an empty one", output_.string());
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

void UnfinishedDirectory::Finish() {
  std::error_code error;
  fs::rename(path_, output_, error);
  if (error) throw FileError("{}: cannot create: {}", output_.string(), error.message());
  path_.clear();
}

}  // namespace litecache::io

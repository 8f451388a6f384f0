#include "engine/prefix/store_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/logging.h"

namespace litecache::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".kv";
constexpr std::string_view kUnfinished = ".kv.tmp";
constexpr size_t kDigits = 32;

std::string ErrorText() { return std::error_code(errno, std::generic_category()).message(); }

// A file that is closed when it goes out of scope. Links are not followed, and FIFOs do not block.
class File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0)
      : descriptor_(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, mode)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool ok() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }
  int Release() { return std::exchange(descriptor_, -1); }
  // A delayed write's error is reported by close.
  bool Close() { return close(std::exchange(descriptor_, -1)) == 0; }

 private:
  int descriptor_;
};

// Throws FileError if the file could not be opened or is not a regular file.
struct stat StatusOf(const File& file, const std::string& path) {
  struct stat status {};
  if (!file.ok() || fstat(file.get(), &status) != 0) throw FileError("{}: {}", path, ErrorText());
  if (!S_ISREG(status.st_mode)) throw FileError("{}: is not a regular file", path);
  return status;
}

// The stored KV determines the model's answers, so only the user may be able to write the files.
void CheckOwner(const std::string& directory) {
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0) {
    throw FileError("prefix store {}: {}", directory, ErrorText());
  }
  if (status.st_uid != geteuid() && status.st_uid != 0) {
    throw FileError("prefix store {}: it belongs to another user (uid {})", directory,
                    status.st_uid);
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw FileError("prefix store {}: other users may write into it: chmod 700 it", directory);
  }
}

// Reads up to bytes.size(); -1 with errno on errors.
ssize_t ReadFully(int file, std::span<std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = read(file, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return static_cast<ssize_t>(done);
}

bool WriteFully(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

std::optional<BlockKey> KeyOf(std::string_view name, std::string_view suffix) {
  if (name.size() != kDigits + suffix.size() || !name.ends_with(suffix)) return std::nullopt;
  BlockKey key;
  const auto parse = [&](std::string_view digits, uint64_t* value) {
    const bool lower =
        std::none_of(digits.begin(), digits.end(), [](char c) { return c >= 'A' && c <= 'F'; });
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), *value, 16);
    return lower && error == std::errc() && end == digits.end();
  };
  if (!parse(name.substr(0, 16), &key.high) || !parse(name.substr(16, 16), &key.low)) {
    return std::nullopt;
  }
  return key;
}

bool IsHexPair(std::string_view name) {
  return name.size() == 2 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

int64_t Nanoseconds(const timespec& time) {
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// Throws FileError if the file is not a completely written block.
StoreDirectory::Found Inspect(const std::string& path, const BlockKey& key) {
  const File file(path, O_RDONLY);
  const struct stat status = StatusOf(file, path);
  std::array<std::byte, BlockHeader::kBytes> bytes;
  const ssize_t count = ReadFully(file.get(), bytes);
  if (count < 0) throw FileError("{}: {}", path, ErrorText());
  const BlockHeader header = ParseHeader(std::span(bytes).first(static_cast<size_t>(count)), path);
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size != header.file_bytes()) {
    throw FileError("{}: {} bytes, but its header says {}", path, size, header.file_bytes());
  }
  if (header.key != key) throw FileError("{}: holds another block than its name says", path);
  return {key, size, Nanoseconds(status.st_mtim)};
}

}  // namespace

StoreDirectory::StoreDirectory(fs::path directory) : directory_(std::move(directory)) {
  std::error_code error;
  const bool made = fs::create_directories(directory_, error);
  if (error) throw FileError("prefix store {}: {}", directory_.string(), error.message());
  if (made) fs::permissions(directory_, fs::perms::owner_all, error);
  const std::string name = (directory_ / ".lock").string();
  CheckOwner(directory_.string());
  File lock(name, O_RDWR | O_CREAT, 0600);
  StatusOf(lock, name);
  lock_ = lock.Release();
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const bool taken = errno == EWOULDBLOCK;
    const std::string reason = ErrorText();
    close(lock_);
    if (!taken) throw FileError("{}: {}", name, reason);
    throw FileError(
        "prefix store {}: another process uses it; give every process a directory of its own",
        directory_.string());
  }
}

StoreDirectory::~StoreDirectory() { close(lock_); }

std::string StoreDirectory::PathOf(const BlockKey& key) const {
  const std::string name = key.ToString();
  return (directory_ / name.substr(0, 2) / (name + std::string(kSuffix))).string();
}

StoreDirectory::Scan StoreDirectory::Read() const {
  Scan scan;
  const auto foreign = [&](const fs::path& path) {
    if (scan.foreign++ == 0) scan.first_foreign = path.string();
  };
  std::error_code error;
  for (const auto& folder : fs::directory_iterator(directory_, error)) {
    const std::string folder_name = folder.path().filename().string();
    if (folder_name == ".lock") continue;
    std::error_code ignored;
    if (!IsHexPair(folder_name) || folder.is_symlink(ignored) || !folder.is_directory(ignored)) {
      foreign(folder.path());
      continue;
    }
    std::error_code inner;
    for (const auto& entry : fs::directory_iterator(folder.path(), inner)) {
      const std::string name = entry.path().filename().string();
      const auto key = KeyOf(name, kSuffix);
      if (!entry.is_regular_file(ignored) || entry.is_symlink(ignored)) {
        foreign(entry.path());
      } else if (KeyOf(name, kUnfinished)) {
        fs::remove(entry.path(), ignored);
      } else if (!key || name.substr(0, 2) != folder_name) {
        foreign(entry.path());
      } else {
        try {
          scan.blocks.push_back(Inspect(entry.path().string(), *key));
        } catch (const FileError& damage) {
          // A failing disk may have thousands.
          if (++scan.damaged <= 5) LogWarning("prefix store: removed {}", damage.what());
          fs::remove(entry.path(), ignored);
        }
      }
    }
    if (inner) LogWarning("prefix store: {}: {}", folder.path().string(), inner.message());
  }
  if (error) throw FileError("prefix store {}: {}", directory_.string(), error.message());
  return scan;
}

std::vector<std::byte> StoreDirectory::ReadBlock(const BlockKey& key) const {
  const std::string path = PathOf(key);
  const File file(path, O_RDONLY);
  const struct stat status = StatusOf(file, path);
  std::vector<std::byte> bytes(static_cast<size_t>(status.st_size));
  const ssize_t count = ReadFully(file.get(), bytes);
  if (count < 0) throw FileError("{}: {}", path, ErrorText());
  bytes.resize(static_cast<size_t>(count));
  return bytes;
}

void StoreDirectory::WriteBlock(const BlockKey& key, std::span<const std::byte> bytes) const {
  const std::string path = PathOf(key);
  const std::string unfinished = path + ".tmp";
  const std::string folder = fs::path(path).parent_path().string();
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw FileError("{}: {}", folder, ErrorText());
  }
  File file(unfinished, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (!file.ok()) throw FileError("{}: {}", unfinished, ErrorText());
  if (!WriteFully(file.get(), bytes) || !file.Close() ||
      rename(unfinished.c_str(), path.c_str()) != 0) {
    const std::string reason = ErrorText();
    unlink(unfinished.c_str());
    throw FileError("{}: {}", unfinished, reason);
  }
}

void StoreDirectory::Remove(const BlockKey& key) const { unlink(PathOf(key).c_str()); }

void StoreDirectory::SetUsed(const BlockKey& key, int64_t nanoseconds) const {
  timespec times[2] = {};
  times[0].tv_nsec = UTIME_OMIT;
  times[1].tv_sec = nanoseconds / 1'000'000'000;
  times[1].tv_nsec = nanoseconds % 1'000'000'000;
  utimensat(AT_FDCWD, PathOf(key).c_str(), times, 0);
}

}  // namespace litecache::engine

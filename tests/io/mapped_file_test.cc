#include "io/mapped_file.h"

#include <sys/stat.h>

#include <cstring>
#include <utility>

#include "expect_error.h"
#include "temporary_directory.h"

namespace litecache::io {
namespace {

using ::litecache::testing::TemporaryDirectory;

TEST(MappedFileTest, MapsMovesAndPrefaults) {
  const TemporaryDirectory directory;
  std::string contents(40 << 20, '\0');
  for (size_t i = 0; i < contents.size(); i += 4096) contents[i] = static_cast<char>(i >> 12);
  MappedFile first(directory.Write("big", contents));
  MappedFile file(std::move(first));
  EXPECT_EQ(first.data(), nullptr);
  ASSERT_EQ(file.size(), contents.size());
  size_t bytes = 0;
  int pieces = 0;
  file.Prefault([&](size_t count) {
    bytes += count;
    ++pieces;
  });
  EXPECT_EQ(bytes, contents.size());
  EXPECT_GT(pieces, 1);
  EXPECT_EQ(std::memcmp(file.data(), contents.data(), contents.size()), 0);
  MappedFile other(directory.Write("small", "abc"));
  other = std::move(file);
  EXPECT_EQ(other.size(), contents.size());
}

TEST(MappedFileTest, EmptyFilesAndNoFiles) {
  const TemporaryDirectory directory;
  const MappedFile empty(directory.Write("empty", ""));
  EXPECT_EQ(empty.size(), 0u);
  empty.Prefault([](size_t) { FAIL(); });
  EXPECT_ERROR(MappedFile(directory.path() / "none"), FileError, "none", "No such file");
  EXPECT_ERROR(MappedFile(directory.path()), FileError, "not a regular file");
  const auto fifo = directory.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_ERROR(MappedFile{fifo}, FileError, "not a regular file");
}

}  // namespace
}  // namespace litecache::io

#include "io/file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "expect_error.h"
#include "temporary_directory.h"

namespace litecache::io {
namespace {

using ::litecache::testing::TemporaryDirectory;

std::vector<std::string> Names(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& item : std::filesystem::directory_iterator(directory)) {
    names.push_back(item.path().filename().string());
  }
  return names;
}

TEST(FileTest, ReadsWhatWasWritten) {
  const TemporaryDirectory directory;
  std::string contents = "a\0b\xff\n";
  contents += std::string(3'000'000, 'z');
  const auto path = directory.path() / "out.txt";
  WriteFileAtomically(path, contents);
  EXPECT_EQ(ReadTextFile(path), contents);
  WriteFileAtomically(path, "");
  EXPECT_EQ(ReadTextFile(path), "");
  EXPECT_EQ(Names(directory.path()), std::vector<std::string>{"out.txt"});
}

TEST(FileTest, NewFilesFollowTheUmaskAndOldOnesKeepTheirMode) {
  const TemporaryDirectory directory;
  const auto mode = [](const std::filesystem::path& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status.st_mode & 0777;
  };
  const auto path = directory.path() / "out.txt";
  const mode_t old = ::umask(027);
  WriteFileAtomically(path, "x");
  EXPECT_EQ(mode(path), 0640u);
  ASSERT_EQ(::chmod(path.c_str(), 0604), 0);
  WriteFileAtomically(path, "y");
  EXPECT_EQ(mode(path), 0604u);
  ::umask(old);
}

TEST(FileTest, SaysWhyAFileCannotBeRead) {
  const TemporaryDirectory directory;
  EXPECT_ERROR(ReadTextFile(directory.path() / "none"), FileError, "none", "No such file");
  EXPECT_ERROR(ReadTextFile(directory.path()), FileError, "not a regular file");
  EXPECT_ERROR(ReadTextFile(directory.Write("long", "12345"), 4), FileError, "at most 4 B");
  // A FIFO nobody writes to: an error, not a hang.
  const auto fifo = directory.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_ERROR(ReadTextFile(fifo), FileError, "not a regular file");
  if (::geteuid() != 0) {  // root reads everything
    const auto secret = directory.Write("secret", "x");
    ASSERT_EQ(::chmod(secret.c_str(), 0), 0);
    EXPECT_ERROR(ReadTextFile(secret), FileError, "Permission denied");
  }
}

TEST(FileTest, AFailedWriteLeavesTheOldFile) {
  const TemporaryDirectory directory;
  EXPECT_ERROR(WriteFileAtomically(directory.path() / "no" / "out", "x"), FileError, "no/out",
               "No such file");
  EXPECT_ERROR(WriteFileAtomically(directory.path(), "x"), FileError);

  // The limit on a file's size simulates a full disk: write() fails half way.
  const auto path = directory.Write("out", "old");
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = 100'000;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_ERROR(WriteFileAtomically(path, std::string(200'000, 'n')), FileError, "out",
               "cannot write", "File too large");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(ReadTextFile(path), "old");
  EXPECT_EQ(Names(directory.path()), std::vector<std::string>{"out"});
}

TEST(FileTest, DevicesAreNotReplaced) {
  EXPECT_ERROR(WriteFileAtomically("/dev/full", "x"), FileError, "/dev/full");
  struct stat status {};
  ASSERT_EQ(::stat("/dev/full", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

}  // namespace
}  // namespace litecache::io

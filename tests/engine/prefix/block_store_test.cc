// The prefix store's files: blocks are read back as written or rejected, whatever happened to them.
#include "engine/prefix/block_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <future>
#include <random>

#include "base/error.h"
#include "engine/prefix/block_file.h"
#include "expect_error.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::engine {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;
using testing::TestRandom;
constexpr std::chrono::seconds kLong{60};

// A chain of sealed blocks with random tokens and contents.
std::vector<Block> RandomChain(std::mt19937_64& random, int blocks, uint64_t payload) {
  const BlockKey space = RootKey("space " + std::to_string(random()));
  BlockKey parent = space;
  std::vector<Block> chain;
  for (int i = 0; i < blocks; ++i) {
    std::vector<int32_t> tokens(16);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 1000);
    Block block = MakeBlock(space, parent, static_cast<uint32_t>(i), tokens, payload);
    for (std::byte& x : block.payload()) x = static_cast<std::byte>(random());
    Seal(&block);
    parent = block.header.key;
    chain.push_back(std::move(block));
  }
  return chain;
}

std::vector<BlockKey> Keys(const std::vector<Block>& chain) {
  std::vector<BlockKey> keys;
  for (const Block& block : chain) keys.push_back(block.header.key);
  return keys;
}

std::optional<Block> ReadBack(BlockStore& store, const BlockKey& key) {
  std::promise<std::optional<Block>> promise;
  store.Read(key, [&](std::optional<Block> block) { promise.set_value(std::move(block)); });
  return promise.get_future().get();
}

void WriteAll(BlockStore& store, const std::vector<Block>& chain) {
  const int64_t now = BlockStore::Now();
  for (const Block& block : chain) store.Write(block, now, {});
  ASSERT_TRUE(store.WaitForWrites(kLong));
}

// Regular files of the store, without the lock.
std::vector<fs::path> Files(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file() && entry.path().filename() != ".lock") {
      files.push_back(entry.path());
    }
  }
  return files;
}

uint64_t Size(const fs::path& directory) {
  uint64_t bytes = 0;
  for (const auto& file : Files(directory)) bytes += fs::file_size(file);
  return bytes;
}

TEST(BlockFile, EveryChangedByteAndEveryCutIsNoticed) {
  auto random = TestRandom(91);
  for (int round = 0; round < 20; ++round) {
    const std::vector<Block> chain = RandomChain(random, 2, random() % 200);
    const Block& block = chain[1];
    const Block read = ParseBlock(block.bytes, "file");
    EXPECT_EQ(read.header.key, block.header.key);
    EXPECT_EQ(read.header.parent, chain[0].header.key);
    EXPECT_EQ(read.header.space, block.header.space);
    EXPECT_EQ(read.header.depth, 1u);
    EXPECT_EQ(read.tokens, block.tokens);
    EXPECT_TRUE(std::ranges::equal(read.payload(), block.payload()));
    for (size_t i = 0; i < block.bytes.size(); ++i) {
      auto changed = block.bytes;
      changed[i] ^= static_cast<std::byte>(1 + random() % 255);
      EXPECT_THROW(ParseBlock(changed, "file"), FileError) << "byte " << i;
    }
    for (size_t size = 0; size < block.bytes.size(); ++size) {
      EXPECT_THROW(
          ParseBlock({block.bytes.begin(), block.bytes.begin() + static_cast<long>(size)}, "file"),
          FileError)
          << size;
    }
    auto longer = block.bytes;
    longer.push_back(std::byte{0});
    EXPECT_THROW(ParseBlock(longer, "file"), FileError);
  }
}

TEST(BlockKeys, NameAllThatCameBefore) {
  auto random = TestRandom(92);
  std::vector<int32_t> tokens(64);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random());
  const auto keys = ChainKeys(RootKey("a"), tokens, 16);
  ASSERT_EQ(keys.size(), 4u);
  EXPECT_EQ(ChainKeys(RootKey("a"), std::span(tokens).first(63), 16).size(), 3u);
  EXPECT_NE(ChainKeys(RootKey("b"), tokens, 16), keys);
  for (size_t changed = 0; changed < tokens.size(); ++changed) {
    auto other = tokens;
    other[changed] ^= 1;
    const auto others = ChainKeys(RootKey("a"), other, 16);
    for (size_t block = 0; block < keys.size(); ++block) {
      EXPECT_EQ(others[block] == keys[block], block < changed / 16) << changed << " " << block;
    }
  }
}

TEST(BlockStore, KeepsBlocksForTheNextProcess) {
  auto random = TestRandom(93);
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "made" / "here";
  const auto chain = RandomChain(random, 7, 1000);
  {
    BlockStore store(path, 1 << 20);
    EXPECT_EQ(store.CountChain(Keys(chain)), 0);
    WriteAll(store, chain);
    EXPECT_EQ(store.CountChain(Keys(chain)), 7);
    EXPECT_EQ(store.Stats().bytes, Size(path));
    struct stat status {};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    for (const auto& file : Files(path)) {
      ASSERT_EQ(stat(file.c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 0777, 0600u);
    }
  }
  BlockStore store(path, 1 << 20);
  EXPECT_EQ(store.Stats().blocks, 7);
  EXPECT_EQ(store.CountChain(Keys(chain)), 7);
  for (const Block& block : chain) {
    const auto read = ReadBack(store, block.header.key);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->tokens, block.tokens);
    EXPECT_TRUE(std::ranges::equal(read->payload(), block.payload()));
  }
  EXPECT_FALSE(ReadBack(store, RootKey("unknown")));
  EXPECT_EQ(store.Stats().damaged, 0);
}

TEST(BlockStore, NeverExceedsItsSizeAndDropsTheLeastRecentlyUsed) {
  auto random = TestRandom(94);
  const TemporaryDirectory directory;
  const auto used = RandomChain(random, 3, 1000);
  const auto unused = RandomChain(random, 3, 1000);
  const auto fresh = RandomChain(random, 4, 1000);
  const uint64_t file = used[0].bytes.size();
  {
    BlockStore store(directory.path(), 8 * file + file / 2);
    WriteAll(store, used);
    WriteAll(store, unused);
    store.Touch(Keys(used));
    for (const Block& block : fresh) {
      WriteAll(store, {block});
      EXPECT_LE(Size(directory.path()), 8 * file + file / 2);
    }
    EXPECT_EQ(store.CountChain(Keys(used)), 3);
    EXPECT_EQ(store.CountChain(Keys(fresh)), 4);
    // A chain loses its last blocks first.
    EXPECT_EQ(store.CountChain(Keys(unused)), 1);
    EXPECT_EQ(store.Stats().evictions, 2);
    EXPECT_FALSE(ReadBack(store, unused[2].header.key));
    EXPECT_EQ(store.Stats().damaged, 0);
    const auto large = RandomChain(random, 1, 100 * file);
    WriteAll(store, large);
    EXPECT_EQ(store.CountChain(Keys(large)), 0) << "larger than the store";
    EXPECT_EQ(store.Stats().blocks, 8);
  }
  // The order of use survives the process, and a smaller limit applies from the start.
  BlockStore store(directory.path(), 4 * file);
  EXPECT_EQ(store.CountChain(Keys(fresh)), 4);
  EXPECT_EQ(store.Stats().blocks, 4);
  EXPECT_EQ(Size(directory.path()), 4 * file);
}

TEST(BlockStore, SkipsWhatIsDamagedOrNotItsOwn) {
  auto random = TestRandom(95);
  const TemporaryDirectory directory;
  const auto chain = RandomChain(random, 8, 500);
  { WriteAll(*std::make_unique<BlockStore>(directory.path(), 1 << 20), chain); }
  const auto path = [&](size_t i) {
    const std::string name = chain[i].header.key.ToString();
    return directory.path() / name.substr(0, 2) / (name + ".kv");
  };
  const auto change = [&](size_t i, int64_t at) {
    std::fstream file(path(i), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(at);
    file.put(byte);
  };
  change(0, 20);                                               // header
  fs::resize_file(path(1), 60);                                // within the header
  fs::resize_file(path(2), 300);                               // within the contents
  fs::resize_file(path(3), 0);                                 // empty
  fs::rename(path(4), fs::path(path(5)));                      // under the name of another block
  change(6, BlockHeader::kBytes + 3);                          // tokens: found when it is read
  change(7, static_cast<int64_t>(chain[7].bytes.size()) - 1);  // contents: found when it is read
  const std::string digits = chain[0].header.key.ToString();
  directory.Write("notes.txt", "mine");
  directory.Write("ab/readme", "mine, too");
  directory.Write("ab/" + std::string(32, 'a') + ".kv.bak", "mine as well");
  directory.Write("photos/cat.jpg", "meow");
  const auto unfinished = directory.Write(digits.substr(0, 2) + "/" + digits + ".kv.tmp", "half");
  const fs::path link = directory.path() / "ab" / ("ab" + std::string(30, 'a') + ".kv");
  fs::create_symlink("/etc/passwd", link);
  const fs::path fifo = directory.path() / "ab" / ("ab" + std::string(30, 'c') + ".kv");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  // A valid block, but behind a link.
  const TemporaryDirectory elsewhere;
  Block linked;
  do {
    linked = RandomChain(random, 1, 500)[0];
  } while (fs::exists(directory.path() / linked.header.key.ToString().substr(0, 2)));
  const std::string linked_name = linked.header.key.ToString();
  const fs::path behind =
      elsewhere.Write(linked_name + ".kv",
                      {reinterpret_cast<const char*>(linked.bytes.data()), linked.bytes.size()});
  fs::create_directory_symlink(elsewhere.path(), directory.path() / linked_name.substr(0, 2));

  BlockStore store(directory.path(), 1 << 20);
  EXPECT_FALSE(store.Has(linked.header.key));
  EXPECT_TRUE(fs::is_fifo(fifo));
  EXPECT_EQ(store.Stats().blocks, 2);
  EXPECT_EQ(store.Stats().damaged, 5);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_FALSE(fs::exists(path(i))) << i;
    EXPECT_FALSE(store.Has(chain[i].header.key)) << i;
  }
  EXPECT_FALSE(fs::exists(unfinished));
  for (size_t i = 6; i < 8; ++i) {
    EXPECT_TRUE(store.Has(chain[i].header.key));
    EXPECT_FALSE(ReadBack(store, chain[i].header.key)) << i;
    EXPECT_FALSE(fs::exists(path(i))) << i;
    EXPECT_FALSE(store.Has(chain[i].header.key));
  }
  EXPECT_EQ(store.Stats().damaged, 7);
  for (const char* name : {"notes.txt", "ab/readme", "photos/cat.jpg"}) {
    EXPECT_TRUE(fs::exists(directory.path() / name)) << name;
  }
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::exists(behind));
  // The store keeps working, and stores the lost blocks again.
  WriteAll(store, chain);
  EXPECT_EQ(store.CountChain(Keys(chain)), 8);
  for (const Block& block : chain) EXPECT_TRUE(ReadBack(store, block.header.key));
}

TEST(BlockStore, ASecondProcessIsRefused) {
  const TemporaryDirectory directory;
  auto store = std::make_unique<BlockStore>(directory.path(), 1 << 20);
  // For the system, a lock of another open file in this process is like that of another process.
  EXPECT_ERROR(BlockStore(directory.path(), 1 << 20), FileError, "another process uses it");
  const pid_t child = fork();
  if (child == 0) {
    try {
      const StoreDirectory second(directory.path());
      _exit(0);
    } catch (const FileError&) {
      _exit(7);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  store.reset();
  BlockStore again(directory.path(), 1 << 20);
}

TEST(BlockStore, RefusesWhatOthersMayChange) {
  const TemporaryDirectory directory;
  for (const fs::perms others : {fs::perms::others_write, fs::perms::group_write}) {
    fs::permissions(directory.path(), fs::perms::owner_all | others);
    EXPECT_ERROR(BlockStore(directory.path(), 1 << 20), FileError, "chmod 700");
  }
  fs::permissions(directory.path(), fs::perms::owner_all);
  const TemporaryDirectory elsewhere;
  fs::create_symlink(elsewhere.path() / "target", directory.path() / ".lock");
  EXPECT_ERROR(BlockStore(directory.path(), 1 << 20), FileError, ".lock");
  EXPECT_FALSE(fs::exists(elsewhere.path() / "target"));
  fs::remove(directory.path() / ".lock");
  ASSERT_EQ(mkfifo((directory.path() / ".lock").c_str(), 0600), 0);
  EXPECT_ERROR(BlockStore(directory.path(), 1 << 20), FileError, "not a regular file");
  fs::remove(directory.path() / ".lock");
  BlockStore store(directory.path(), 1 << 20);
}

TEST(BlockStore, RefusesADirectoryOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  const TemporaryDirectory directory;
  ASSERT_EQ(chown(directory.path().c_str(), 12345, 12345), 0);
  EXPECT_ERROR(BlockStore(directory.path(), 1 << 20), FileError, "another user (uid 12345)");
}

// A FIFO in the place of the temporary file of a block: the block is not stored, and nothing hangs.
TEST(BlockStore, WaitsForNoFifo) {
  auto random = TestRandom(97);
  const TemporaryDirectory directory;
  const auto chain = RandomChain(random, 1, 100);
  const std::string name = chain[0].header.key.ToString();
  fs::create_directory(directory.path() / name.substr(0, 2));
  BlockStore store(directory.path(), 1 << 20);
  const auto fifo = directory.path() / name.substr(0, 2) / (name + ".kv.tmp");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::promise<void> tried;
  // One who waits for a reader gets it after a while, so that the test ends.
  const auto reader = std::async(std::launch::async, [&, done = tried.get_future()] {
    if (done.wait_for(std::chrono::seconds(10)) == std::future_status::ready) return -1;
    return open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  });
  WriteAll(store, chain);
  tried.set_value();
  EXPECT_FALSE(store.Stats().writing);
}

TEST(BlockStore, RefusesAnUnusablePath) {
  const TemporaryDirectory directory;
  const auto file = directory.Write("file", "x");
  EXPECT_ERROR(BlockStore(file, 1 << 20), FileError, file.string());
  EXPECT_ERROR(BlockStore(file / "below", 1 << 20), FileError, file.string());
}

TEST(BlockStore, AFullDiskEndsTheWritingOnly) {
  auto random = TestRandom(96);
  const TemporaryDirectory directory;
  const auto small = RandomChain(random, 3, 1000);
  const auto large = RandomChain(random, 2, 300000);
  BlockStore store(directory.path(), 1 << 24);
  WriteAll(store, small);
  // A limit on the size of files, which a write reaches half way.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = 100000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  WriteAll(store, large);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(store.Stats().writing);
  EXPECT_FALSE(store.WantsBlocks());
  EXPECT_EQ(store.CountChain(Keys(large)), 0);
  EXPECT_EQ(Files(directory.path()).size(), 3u) << "what was half written is gone";
  WriteAll(store, RandomChain(random, 1, 10));
  EXPECT_EQ(store.Stats().blocks, 3) << "nothing more is written";
  for (const Block& block : small) EXPECT_TRUE(ReadBack(store, block.header.key));
}

}  // namespace
}  // namespace litecache::engine

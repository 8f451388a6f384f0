#include "device/cpu/memory_limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "base/units.h"
#include "temporary_directory.h"

namespace litecache {
namespace {

namespace fs = std::filesystem;

// A synthetic root directory with the kernel's files.
class MemoryLimitsTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) { directory_.Write(path, text); }
  void WriteMeminfo() {
    Write("proc/meminfo",
          "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:   12000 kB\n");
  }

  const litecache::testing::TemporaryDirectory directory_;
  const fs::path root_ = directory_.path();
};

TEST_F(MemoryLimitsTest, WithoutGroupsTheMachineCounts) {
  WriteMeminfo();
  const MemoryLimits limits = ReadMemoryLimits(root_);
  EXPECT_EQ(limits.total, 16000u * 1024);
  EXPECT_EQ(limits.free, 12000u * 1024);
}

TEST_F(MemoryLimitsTest, V2AncestorBinds) {
  WriteMeminfo();
  Write("proc/self/cgroup", "0::/slice/service\n");
  Write("sys/fs/cgroup/slice/service/memory.max", "max\n");
  Write("sys/fs/cgroup/slice/memory.max", "4096000\n");
  Write("sys/fs/cgroup/slice/memory.current", "3000000\n");
  Write("sys/fs/cgroup/slice/memory.stat", "anon 1000000\ninactive_file 500000\n");
  const MemoryLimits limits = ReadMemoryLimits(root_);
  EXPECT_EQ(limits.total, 4096000u);
  EXPECT_EQ(limits.free, 4096000u - 2500000u);
}

TEST_F(MemoryLimitsTest, V2ContainerSeesItsGroupAtTheMount) {
  WriteMeminfo();
  Write("proc/self/cgroup", "0::/../outside\n");
  Write("sys/fs/cgroup/memory.max", "8192000\n");
  Write("sys/fs/cgroup/memory.current", "9000000\n");
  const MemoryLimits limits = ReadMemoryLimits(root_);
  EXPECT_EQ(limits.total, 8192000u);
  EXPECT_EQ(limits.free, 0u);
}

TEST_F(MemoryLimitsTest, V1MemoryControllerAmongOthers) {
  WriteMeminfo();
  Write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n");
  Write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2048000\n");
  Write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "48000\n");
  const MemoryLimits limits = ReadMemoryLimits(root_);
  EXPECT_EQ(limits.total, 2048000u);
  EXPECT_EQ(limits.free, 2000000u);
}

TEST_F(MemoryLimitsTest, UnlimitedV1AndGarbageDoNotBind) {
  WriteMeminfo();
  Write("proc/self/cgroup", "nonsense\n4:memory:/\n:\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(ReadMemoryLimits(root_).total, 16000u * 1024);
}

TEST_F(MemoryLimitsTest, NothingReadableIsZero) {
  EXPECT_EQ(ReadMemoryLimits(root_).total, 0u);
  EXPECT_EQ(ReadMemoryLimits(root_).free, 0u);
}

TEST(LockedMemoryHint, NamesTheLimitAndTheFix) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit lowered = before;
  lowered.rlim_cur = std::min<rlim_t>(before.rlim_max, 64 << 10);
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &lowered), 0);
  const std::string hint = LockedMemoryHint();
  setrlimit(RLIMIT_MEMLOCK, &before);
  EXPECT_NE(hint.find(FormatBytes(lowered.rlim_cur)), std::string::npos) << hint;
  EXPECT_NE(hint.find("ulimit -l"), std::string::npos) << hint;
  if (before.rlim_cur == RLIM_INFINITY) {
    EXPECT_EQ(LockedMemoryHint(), "");
  }
}

}  // namespace
}  // namespace litecache

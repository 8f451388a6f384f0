// Finds the memory near a device from files as on systems with one and several sockets.
#include "device/cpu/numa.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "temporary_directory.h"

namespace litecache {
namespace {

class NumaTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) { directory_.Write(path, text); }

  const testing::TemporaryDirectory directory_;
  const std::filesystem::path root_ = directory_.path();
};

TEST_F(NumaTest, ANodeOfSeveral) {
  Write("sys/devices/system/node/online", "0-1\n");
  Write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "1\n");
  EXPECT_EQ(NumaNodeOfPci("0000:1B:00.0", root_), 1);
  EXPECT_EQ(NumaNodeOfPci("0000:1b:00.0", root_), 1);
  EXPECT_EQ(NumaNodeOfPci("0000:1c:00.0", root_), std::nullopt);
}

TEST_F(NumaTest, NothingToChoose) {
  Write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "0\n");
  EXPECT_EQ(NumaNodeOfPci("0000:1b:00.0", root_), std::nullopt);  // no nodes at all
  Write("sys/devices/system/node/online", "0\n");
  EXPECT_EQ(NumaNodeOfPci("0000:1b:00.0", root_), std::nullopt);  // one
  Write("sys/devices/system/node/online", "0,2\n");
  EXPECT_EQ(NumaNodeOfPci("0000:1b:00.0", root_), 0);
  Write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "-1\n");
  EXPECT_EQ(NumaNodeOfPci("0000:1b:00.0", root_), std::nullopt);  // the system does not report it
}

TEST_F(NumaTest, CpusOfANode) {
  Write("sys/devices/system/node/node1/cpulist", "0-2,8,10-11\n");
  EXPECT_EQ(CpusOfNumaNode(1, root_), (std::vector<int>{0, 1, 2, 8, 10, 11}));
  EXPECT_TRUE(CpusOfNumaNode(0, root_).empty());
  Write("sys/devices/system/node/node2/cpulist", "\n");  // a node with memory only
  EXPECT_TRUE(CpusOfNumaNode(2, root_).empty());
  Write("sys/devices/system/node/node3/cpulist", "3-x,5");
  EXPECT_TRUE(CpusOfNumaNode(3, root_).empty());
  Write("sys/devices/system/node/node4/cpulist", "1,7-4000000000");
  EXPECT_EQ(CpusOfNumaNode(4, root_), std::vector<int>{1});
  Write("sys/devices/system/node/node5/cpulist", "1,7-2000000");  // more CPUs than possible
  EXPECT_EQ(CpusOfNumaNode(5, root_), std::vector<int>{1});
  Write("sys/devices/system/node/node6/cpulist", "1,5-3,8");
  EXPECT_EQ(CpusOfNumaNode(6, root_), std::vector<int>{1});
}

// Every system has node 0. The kernel reports the node of a page.
TEST(NumaMemoryTest, PagesAreOnTheRequestedNode) {
  constexpr size_t kBytes = size_t{4} << 20;
  void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  if (!PreferNumaNode(data, kBytes, 0)) {
    const int why = errno;
    munmap(data, kBytes);
    ASSERT_TRUE(why == EPERM || why == ENOSYS) << "errno " << why;
    GTEST_SKIP() << "this system refuses to place memory";
  }
  int policy = -1;
  unsigned long nodes[17] = {};
  ASSERT_EQ(syscall(SYS_get_mempolicy, &policy, nodes, sizeof(nodes) * 8, data, MPOL_F_ADDR), 0);
  EXPECT_EQ(policy, MPOL_PREFERRED);
  EXPECT_EQ(nodes[0], 1u);
  static_cast<char*>(data)[kBytes / 2] = 1;
  int node = -1;
  ASSERT_EQ(syscall(SYS_get_mempolicy, &node, nullptr, 0, static_cast<char*>(data) + kBytes / 2,
                    MPOL_F_NODE | MPOL_F_ADDR),
            0);
  EXPECT_EQ(node, 0);
  EXPECT_FALSE(PreferNumaNode(data, kBytes, -1));
  EXPECT_FALSE(PreferNumaNode(data, kBytes, 1024));  // the first node that does not fit the mask
  EXPECT_FALSE(PreferNumaNode(data, kBytes, 1 << 20));
  munmap(data, kBytes);
}

TEST(NumaMemoryTest, AThreadStaysOnItsCpus) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int last = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) last = cpu;
  }
  std::thread([&] {
    cpu_set_t now;
    RunOnCpus({last, CPU_SETSIZE + 5});
    ASSERT_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    EXPECT_EQ(CPU_COUNT(&now), 1);
    EXPECT_TRUE(CPU_ISSET(last, &now));
    std::vector<int> all(CPU_SETSIZE);
    std::iota(all.begin(), all.end(), 0);
    RunOnCpus(all);  // restricted to those allowed for the thread
    ASSERT_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    EXPECT_EQ(CPU_COUNT(&now), 1);
    RunOnCpus({});  // contains no CPU allowed for the thread
    ASSERT_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    EXPECT_EQ(CPU_COUNT(&now), 1);
  }).join();
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));  // this thread is not affected
}

}  // namespace
}  // namespace litecache

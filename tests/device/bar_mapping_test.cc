// GPU memory that the CPU writes through GDRCopy: a fake library, since few machines have it.
#include "device/cuda/bar_mapping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/allocated.h"
#include "device/fake_gdrcopy/fake_gdrcopy.h"
#include "device/gpu_fixture.h"

namespace litecache {
namespace {

using ::testing::HasSubstr;

using BarMappingTest = testing::GpuFixture;

// This test comes first: once the fake library is loaded, it stays loaded.
TEST_F(BarMappingTest, NeedsTheLibrary) {
  if (dlopen("libgdrapi.so.2", RTLD_NOW) != nullptr) GTEST_SKIP() << "GDRCopy is installed";
  std::string reason;
  EXPECT_EQ(CreateBarMapping(*gpu_, 1000, &reason), nullptr);
  EXPECT_THAT(reason, HasSubstr("libgdrapi.so.2"));
  EXPECT_THAT(reason, HasSubstr("not installed"));
}

TEST_F(BarMappingTest, RefusalsAreNamedAndLeaveNothing) {
  testing::FakeGdrCopy gdr;
  if (!gdr.reason().empty()) GTEST_SKIP() << gdr.reason();
  const uint64_t before = AllocatedGpuMemory();
  const auto refused = [&] {
    std::string reason;
    EXPECT_EQ(CreateBarMapping(*gpu_, 100000, &reason), nullptr);
    EXPECT_TRUE(gdr.nothing_is_left());
    EXPECT_EQ(AllocatedGpuMemory(), before);
    return reason;
  };
  gdr.state().has_driver = false;
  EXPECT_THAT(refused(), HasSubstr("gdrdrv"));
  gdr.state().has_driver = true;
  gdr.state().pin_error = 12;
  EXPECT_THAT(refused(), HasSubstr("cannot pin 131072 bytes of this GPU's memory (error 12)"));
  gdr.state().pin_error = 0;
  gdr.state().map_error = 22;
  EXPECT_THAT(refused(), HasSubstr("cannot map 131072 bytes of this GPU's memory (error 22)"));
  gdr.state().map_error = 0;
  std::string reason;
  EXPECT_NE(CreateBarMapping(*gpu_, 100000, &reason), nullptr) << reason;
}

TEST_F(BarMappingTest, TheGpuReadsWhatTheCpuWrites) {
  testing::FakeGdrCopy gdr;
  if (!gdr.reason().empty()) GTEST_SKIP() << gdr.reason();
  const uint64_t before = AllocatedGpuMemory();
  for (const size_t bytes : {size_t{1}, size_t{65536}, size_t{300001}}) {
    std::string reason;
    const auto mapping = CreateBarMapping(*gpu_, bytes, &reason);
    ASSERT_NE(mapping, nullptr) << reason;
    const auto on_gpu = [&] {
      std::vector<unsigned char> seen(bytes);
      gpu_->Download(seen.data(), mapping->device(), bytes);
      return seen;
    };
    std::vector<unsigned char> want(bytes, 0);
    EXPECT_EQ(on_gpu(), want);  // zeroed
    for (size_t i = 0; i < bytes; ++i) want[i] = static_cast<unsigned char>(1 + i % 251);
    std::memcpy(mapping->host(), want.data(), bytes);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (on_gpu() != want && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(on_gpu(), want);
    EXPECT_EQ(gdr.state().mapped, 1);
  }
  EXPECT_TRUE(gdr.nothing_is_left());
  EXPECT_EQ(AllocatedGpuMemory(), before);
}

}  // namespace
}  // namespace litecache

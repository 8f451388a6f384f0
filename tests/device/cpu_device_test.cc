#include "device/cpu/cpu_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "base/error.h"
#include "device/cpu/cpu_isa.h"

namespace litecache {
namespace {

TEST(CpuDevice, BuffersAreAlignedAndWritable) {
  CpuDevice device(1);
  for (size_t bytes : {size_t{1}, size_t{63}, size_t{4097}, (size_t{2} << 20) - 1}) {
    Buffer buffer = device.Allocate(bytes);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    std::memset(buffer.data(), 0xab, bytes);
  }
  for (size_t bytes : {size_t{2} << 20, (size_t{2} << 20) + 1, size_t{7} << 20}) {
    Buffer buffer = device.Allocate(bytes);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (2u << 20), 0u);
    std::memset(buffer.data(), 0xab, bytes);
  }
}

TEST(CpuDevice, MovedBufferIsFreedOnce) {
  CpuDevice device(1);
  Buffer a = device.Allocate(100);
  void* data = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(b.data(), data);
  b = device.Allocate(size_t{3} << 20);
  EXPECT_NE(b.data(), nullptr);
}

TEST(CpuDevice, ZeroBytesIsAnEmptyBuffer) {
  CpuDevice device(1);
  EXPECT_EQ(device.Allocate(0).data(), nullptr);
}

TEST(CpuDevice, TooLargeNamesTheNumbers) {
  CpuDevice device(1);
  try {
    Buffer buffer = device.Allocate(size_t{1} << 50);
    FAIL() << "a pebibyte was allocated";
  } catch (const CapacityError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("1024 TiB"));
    EXPECT_THAT(error.what(), testing::HasSubstr("free"));
  }
}

TEST(CpuDevice, InfoTellsThreadsAndMemory) {
  CpuDevice device(3);
  const DeviceInfo info = device.Info();
  EXPECT_EQ(info.parallelism, 3);
  EXPECT_THAT(info.name, testing::HasSubstr("3 threads"));
  EXPECT_GT(info.total_memory, uint64_t{64} << 20);
  EXPECT_GT(info.free_memory, 0u);
  EXPECT_LE(info.free_memory, info.total_memory);
}

TEST(CpuDevice, StreamRunsOnThePool) {
  CpuDevice device(3);
  auto stream = device.CreateStream();
  EXPECT_EQ(stream->device_type(), DeviceType::kCpu);
  std::atomic<int> calls{0};
  AsCpu(*stream).pool().Run([&](int) { ++calls; });
  stream->Synchronize();
  EXPECT_EQ(calls, 3);
}

class OtherStream : public Stream {
 public:
  DeviceType device_type() const override { return DeviceType::kCuda; }
  void Synchronize() override {}
};

TEST(CpuDeviceDeathTest, ForeignStreamIsRefused) {
  OtherStream stream;
  EXPECT_DEATH(AsCpu(stream), "not a CPU stream");
}

TEST(CpuIsa, LimitNeverRaises) {
  const CpuIsa best = ActiveCpuIsa();
  for (CpuIsa isa : {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) {
    LimitCpuIsa(isa);
    EXPECT_LE(ActiveCpuIsa(), isa);
    EXPECT_LE(ActiveCpuIsa(), best);
  }
  LimitCpuIsa(CpuIsa::kAvx512Bf16);
  EXPECT_GE(ActiveCpuIsa(), best);
}

}  // namespace
}  // namespace litecache

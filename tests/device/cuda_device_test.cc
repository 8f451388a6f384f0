// GPU memory and host memory that the GPU can access; failures leave nothing allocated.
#include "device/cuda/cuda_device.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/device_error.h"
#include "device/gpu_fixture.h"
#include "device/keep_pinned.h"
#include "device/recording_key.h"
#include "device/refuse_pinning.h"

namespace litecache {
namespace {

using CudaDeviceTest = testing::GpuFixture;

TEST_F(CudaDeviceTest, TooLittleMemoryIsAnErrorWithNumbers) {
  const DeviceInfo before = gpu_->Info();
  for (int i = 0; i < 3; ++i) {
    try {
      gpu_->Allocate(before.total_memory * 2);
      FAIL() << "memory that is not there was given";
    } catch (const CapacityError& error) {
      EXPECT_NE(std::string(error.what()).find(before.name), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("free"), std::string::npos) << error.what();
    }
  }
  const Buffer works = gpu_->Allocate(1 << 20);
  EXPECT_NE(works.data(), nullptr);
}

TEST_F(CudaDeviceTest, PinnedMemoryIsGivenBack) {
  for (const ReadBy reader : {ReadBy::kCopies, ReadBy::kKernels}) {
    PinnedHost host(*gpu_, reader);
    const uint64_t before = host.Info().free_memory;
    for (int i = 0; i < 20; ++i) {
      // GPU and host see the same bytes, and every allocation is given back: otherwise a limit
      // would be reached.
      const Buffer memory = host.Allocate(size_t{256} << 20);
      std::memset(memory.data(), i, 4096);
      std::vector<unsigned char> seen(4096);
      const Buffer device = gpu_->Allocate(4096);
      gpu_->Copy(device.data(), memory.data(), 4096);
      gpu_->Copy(seen.data(), device.data(), 4096);
      EXPECT_EQ(seen, std::vector<unsigned char>(4096, static_cast<unsigned char>(i)));
      // What the GPU writes stays on the host.
      gpu_->Zero(memory.as<std::byte>() + 8192, 4096);
      EXPECT_EQ(memory.as<std::byte>()[12287], std::byte{0});
    }
    // Other programs use memory, too; what twenty allocations would have left is more.
    EXPECT_GT(host.Info().free_memory + (uint64_t{4} << 30), before);
  }
  const auto mirror = gpu_->CreateMirror(1000);
  std::memset(mirror->host(), 7, 1000);
  const auto stream = gpu_->CreateStream();
  mirror->Send(*stream, 1000);
  stream->Synchronize();  // the host's bytes must not change before this point
  std::memset(mirror->host(), 0, 1000);
  mirror->Receive(*stream, 1000);
  stream->Synchronize();
  EXPECT_EQ(mirror->host<unsigned char>()[999], 7);
}

TEST_F(CudaDeviceTest, AnAddressSpaceThatIsFullRefusesAndGoesOn) {
  for (const ReadBy reader : {ReadBy::kCopies, ReadBy::kKernels}) {
    PinnedHost host(*gpu_, reader);
    EXPECT_THROW(host.Allocate(size_t{1} << 50), CapacityError);
    EXPECT_NE(host.Allocate(1 << 20).data(), nullptr);
  }
}

// Many more steps than are kept, with memory that is freed in between; steps repeated early enough
// are replayed.
TEST_F(CudaDeviceTest, RecordingsHaveALimit) {
  const auto stream = gpu_->CreateStream();
  constexpr int kSteps = 4 * static_cast<int>(CudaStream::kMostSteps);
  uint64_t free_at_limit = 0;
  for (int i = 0; i < kSteps; ++i) {
    const auto mirror = gpu_->CreateMirror(1000);
    int issued = 0;
    for (int time = 1; time <= 5; ++time) {
      std::memset(mirror->host(), i + time, 1000);
      stream->Run(RecordingKey().Add(*mirror).value(), [&] {
        ++issued;
        mirror->Send(*stream, 1000);
      });
      stream->Synchronize();
    }
    EXPECT_EQ(issued, 2);  // once directly, and once into the recording
    std::vector<unsigned char> seen(1000);
    gpu_->Download(seen.data(), mirror->device(), 1000);
    ASSERT_EQ(seen, std::vector<unsigned char>(1000, static_cast<unsigned char>(i + 5))) << i;
    if (i == kSteps / 2) free_at_limit = gpu_->Info().free_memory;
  }
  EXPECT_EQ(AsCuda(*stream).steps(), CudaStream::kMostSteps);
  // Other programs may use the GPU as well, so this is only a hint.
  RecordProperty("bytes_since_the_limit",
                 std::to_string(static_cast<int64_t>(free_at_limit - gpu_->Info().free_memory)));
}

// A recorded step becomes ten times as short, and waits for it must adapt at once. Slow adaptation
// would show as 20 waits, each hardly shorter than the one before (600 ms).
TEST_F(CudaDeviceTest, WaitsFollowAStepThatBecomesShorter) {
  using Clock = std::chrono::steady_clock;
  const auto stream = gpu_->CreateStream();
  std::atomic<int> milliseconds{50};
  const auto run = [&] {
    stream->Run(1, [&] {
      LC_CUDA(cudaLaunchHostFunc(
          AsCuda(*stream).handle(),
          [](void* data) {
            const auto* sleeps = static_cast<const std::atomic<int>*>(data);
            std::this_thread::sleep_for(std::chrono::milliseconds(sleeps->load()));
          },
          &milliseconds));
    });
    const auto launched = Clock::now();
    stream->Synchronize();
    return std::chrono::duration<double>(Clock::now() - launched).count();
  };
  for (int i = 0; i < 7; ++i) EXPECT_GE(run(), 0.045) << i;  // a wait ends when its step does
  milliseconds = 5;
  double seconds = 0;
  for (int i = 0; i < 20; ++i) seconds += run();
  EXPECT_GE(seconds, 20 * 0.004);
  EXPECT_LE(seconds, 0.4);
  milliseconds = 30;
  for (int i = 0; i < 7; ++i) EXPECT_GE(run(), 0.025) << i;
}

// Root has no limit on locked memory, so nothing is refused in that case.
TEST_F(CudaDeviceTest, ALimitOnLockedMemoryIsNamed) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit lowered = before;
  lowered.rlim_cur = 1 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &lowered), 0);
  PinnedHost host(*gpu_);
  std::string message;
  try {
    host.Allocate(size_t{512} << 20);
  } catch (const CapacityError& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_MEMLOCK, &before);
  if (message.empty()) GTEST_SKIP() << "this process may lock memory beyond its limit";
  EXPECT_NE(message.find("ulimit -l"), std::string::npos) << message;
}

// Whether memory is mapped at an address.
bool IsMapped(void* address) {
  unsigned char in_memory = 0;
  return mincore(address, 1, &in_memory) == 0;
}

TEST_F(CudaDeviceTest, PinningThatIsRefusedLeavesNothing) {
  PinnedHost host(*gpu_);
  constexpr size_t kBytes = size_t{64} << 20;
  for (const bool arenas : {false, true}) {
    SCOPED_TRACE(arenas ? "in arenas" : "by itself");
    std::optional<KeepPinned> keep;
    if (arenas) keep.emplace();
    {
      const testing::RefusePinning refuse;
      for (int i = 0; i < 5; ++i) {
        try {
          host.Allocate(kBytes);
          FAIL() << "the driver pinned a page that nobody may access";
        } catch (const CapacityError& error) {
          const std::string message = error.what();
          EXPECT_NE(message.find(arenas ? "256 MiB" : "64.0 MiB"), std::string::npos) << message;
          EXPECT_NE(message.find("could not be pinned"), std::string::npos) << message;
          EXPECT_NE(message.find("host_memory"), std::string::npos) << message;
        }
        void* const memory = testing::RefusePinning::last();
        ASSERT_NE(memory, nullptr);
        EXPECT_FALSE(IsMapped(memory));
        EXPECT_EQ(cudaHostUnregister(memory), cudaErrorHostMemoryNotRegistered);
        cudaGetLastError();
      }
    }
    EXPECT_EQ(KeepPinned::bytes(), 0u);
    // Later allocations are affected neither by leftover memory nor by the driver's errors.
    const Buffer memory = host.Allocate(kBytes);
    std::memset(memory.data(), 5, kBytes);
    const Buffer device = gpu_->Allocate(kBytes);
    gpu_->Copy(device.data(), memory.data(), kBytes);
  }
}

}  // namespace
}  // namespace litecache

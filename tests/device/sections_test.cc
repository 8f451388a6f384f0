#include "device/sections.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_devices.h"
#include "device/machine.h"

namespace litecache {
namespace {

using std::chrono::milliseconds;

size_t Index(Section section) { return static_cast<size_t>(section); }

TEST(SectionTimer, AddsUpWhatMarksEnclose) {
  CpuDevice device(1);
  const auto stream = device.CreateStream(), other = device.CreateStream();
  Mark(*stream, Section::kTransfer);  // without a timer
  const auto start = std::chrono::steady_clock::now();
  SectionTimer timer(*stream);
  double spans = 0;
  constexpr int kSteps = 3;
  for (int step = 0; step < kSteps; ++step) {
    timer.BeginStep();
    Mark(*other, Section::kTransfer);
    {
      const SectionScope products(*stream, Section::kProducts);
      std::this_thread::sleep_for(milliseconds(4));
    }
    std::this_thread::sleep_for(milliseconds(1));
    Mark(*stream, Section::kAttention);
    std::this_thread::sleep_for(milliseconds(2));
    Mark(*stream, Section::kRest);
    timer.EndStep();
    EXPECT_EQ(timer.marks(), 4);
    EXPECT_GE(timer.span(), 7e-3);
    spans += timer.span();
  }
  const double all =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(timer.steps(), kSteps);
  EXPECT_GE(timer.seconds()[Index(Section::kProducts)], kSteps * 4e-3);
  EXPECT_GE(timer.seconds()[Index(Section::kAttention)], kSteps * 2e-3);
  EXPECT_GE(timer.seconds()[Index(Section::kRest)], kSteps * 1e-3);
  EXPECT_EQ(timer.seconds()[Index(Section::kTransfer)], 0);
  double sum = 0;
  for (const double seconds : timer.seconds()) sum += seconds;
  EXPECT_LE(sum, all);
  EXPECT_NEAR(sum, spans, 1e-9);
  EXPECT_EQ(timer.counts()[Index(Section::kProducts)], kSteps);
  EXPECT_EQ(timer.counts()[Index(Section::kAttention)], kSteps);
  EXPECT_EQ(timer.counts()[Index(Section::kRest)], kSteps);  // the last mark has no end
}

// Marks are part of a recorded graph, and its replays measure their own times.
TEST(SectionTimer, TimesReplays) {
  if (FindCudaDevices().devices.empty()) GTEST_SKIP() << FindCudaDevices().reason;
  const Machine machine = OpenMachine("cuda", 1);
  const auto stream = machine.gpu->CreateStream();
  const size_t bytes = size_t{256} << 20;  // 5 ms over the link
  const auto mirror = machine.gpu->CreateMirror(bytes);
  double plain = 1e9;
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    mirror->Send(*stream, bytes);
    stream->Synchronize();
    plain = std::min(
        plain, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  SectionTimer timer(*stream);
  constexpr int kSteps = 6;
  for (int step = 0; step < kSteps; ++step) {
    timer.BeginStep();
    stream->Run(1, [&] {
      Mark(*stream, Section::kTransfer);
      mirror->Send(*stream, bytes);
      Mark(*stream, Section::kRest);
    });
    timer.EndStep();
  }
  EXPECT_EQ(timer.counts()[Index(Section::kTransfer)], kSteps);
  EXPECT_NEAR(timer.seconds()[Index(Section::kTransfer)], kSteps * plain, 0.2 * kSteps * plain);
}

}  // namespace
}  // namespace litecache

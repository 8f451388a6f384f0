// The host side of cpu-push; a thread simulates the device according to the protocol of
// ops/transfer/transfer_cuda.h.
#include "kv/transfer/row_pusher.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <set>

#include "test_seed.h"

namespace litecache::kv {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using ops::cuda::kFlagStride;

uint64_t Acquire(uint64_t& flag) {
  return std::atomic_ref<uint64_t>(flag).load(std::memory_order_acquire);
}
void Release(uint64_t& flag, uint64_t value) {
  std::atomic_ref<uint64_t>(flag).store(value, std::memory_order_release);
}

// Processor time of the whole process.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The device side: memory, counters, and the work of its kernels.
class FakeDevice {
 public:
  FakeDevice(int64_t count, size_t chunk_bytes)
      : chunks_(static_cast<size_t>(count) * chunk_bytes),
        ready_(static_cast<size_t>(count * kFlagStride)),
        consumed_(ready_.size()),
        chunk_bytes_(chunk_bytes),
        count_(static_cast<uint64_t>(count)) {}

  PushMemory memory() {
    return {.mailbox = &mailbox_,
            .chunks = chunks_.data(),
            .ready = ready_.data(),
            .consumed = consumed_.data(),
            .count = static_cast<int64_t>(count_),
            .chunk_bytes = chunk_bytes_,
            .stores = stores};
  }

  // As ListRows.
  void Ask(const std::vector<const std::byte*>& rows, size_t row_bytes) {
    sources_.clear();
    for (const std::byte* row : rows) sources_.push_back(reinterpret_cast<uint64_t>(row));
    chunk_rows_ = chunk_bytes_ / row_bytes;
    row_bytes_ = row_bytes;
    first_ = end_;
    end_ += (rows.size() + chunk_rows_ - 1) / chunk_rows_;
    mailbox_.request = {.first_chunk = first_,
                        .rows = rows.size(),
                        .chunk_rows = chunk_rows_,
                        .row_bytes = row_bytes,
                        .sources = sources_.data()};
    Release(mailbox_.asked, end_);
  }

  // As DrainRows on `blocks` blocks, which wait in parallel. Empty after the deadline.
  std::optional<std::vector<std::byte>> Drain(std::mt19937_64& random, size_t blocks,
                                              Clock::duration deadline) {
    std::vector<std::byte> rows(sources_.size() * row_bytes_);
    std::vector<uint64_t> waited;
    uint64_t next = first_;
    Clock::time_point begin = Clock::now();
    while (next < end_ || !waited.empty()) {
      while (waited.size() < blocks && next < end_) waited.push_back(next++);
      const size_t pick = random() % waited.size();
      const uint64_t chunk = waited[pick];
      const uint64_t place = chunk % count_;
      if (Acquire(ready_[place * kFlagStride]) != chunk + 1) {
        if (Clock::now() - begin > deadline) return std::nullopt;
        std::this_thread::yield();
        continue;
      }
      begin = Clock::now();
      waited.erase(waited.begin() + static_cast<int64_t>(pick));
      const uint64_t first = (chunk - first_) * chunk_rows_;
      const uint64_t n = std::min<uint64_t>(chunk_rows_, sources_.size() - first);
      std::memcpy(rows.data() + first * row_bytes_, chunks_.data() + place * chunk_bytes_,
                  n * row_bytes_);
      Release(consumed_[place * kFlagStride], chunk + 1);
    }
    return rows;
  }

  ops::CollectStores stores = ops::CollectStores::kCached;

 private:
  alignas(64) ops::cuda::TransferMailbox mailbox_;
  std::vector<std::byte> chunks_;
  std::vector<uint64_t> ready_, consumed_;
  size_t chunk_bytes_;
  uint64_t count_;
  std::vector<uint64_t> sources_;
  uint64_t first_ = 0, end_ = 0, chunk_rows_ = 1;
  size_t row_bytes_ = 0;
};

struct Rows {
  std::vector<std::byte> memory;
  size_t row_bytes;
  int64_t count;

  Rows(std::mt19937_64& random, size_t bytes, int64_t n) : row_bytes(bytes), count(n) {
    memory.resize(row_bytes * static_cast<size_t>(count));
    for (std::byte& b : memory) b = static_cast<std::byte>(random());
  }
  // n rows, some of them repeatedly.
  std::vector<const std::byte*> Choose(std::mt19937_64& random, int64_t n) const {
    std::vector<const std::byte*> rows;
    for (int64_t i = 0; i < n; ++i) {
      rows.push_back(memory.data() + random() % static_cast<uint64_t>(count) * row_bytes);
    }
    return rows;
  }
};

void ExpectRows(const std::vector<const std::byte*>& want, size_t row_bytes,
                const std::optional<std::vector<std::byte>>& got, const std::string& where) {
  ASSERT_TRUE(got.has_value()) << where << ": a chunk did not come";
  ASSERT_EQ(got->size(), want.size() * row_bytes) << where;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(std::memcmp(got->data() + i * row_bytes, want[i], row_bytes), 0)
        << where << ", row " << i << " of " << want.size();
  }
}

TEST(RowPusher, RandomTransfers) {
  std::mt19937_64 random = testing::TestRandom(31);
  for (int round = 0; round < 8; ++round) {
    const size_t row_bytes = 2 * (1 + random() % 400);
    const size_t chunk_bytes = (row_bytes * (1 + random() % 9) + 63) / 64 * 64;
    const int64_t count = 1 + static_cast<int64_t>(random() % 9);
    const int threads = 1 + static_cast<int>(random() % 6);
    const size_t blocks = 1 + random() % 8;
    const Rows rows(random, row_bytes, 500);
    FakeDevice device(count, chunk_bytes);
    device.stores = round % 2 == 0 ? ops::CollectStores::kCached : ops::CollectStores::kStreaming;
    RowPusher pusher(device.memory(), threads);
    for (int step = 0; step < 6; ++step) {
      pusher.Expect();
      for (int layer = 0; layer < 4; ++layer) {
        const std::string where = "round " + std::to_string(round) + ", step " +
                                  std::to_string(step) + ", layer " + std::to_string(layer) + ", " +
                                  std::to_string(threads) + " threads, ring of " +
                                  std::to_string(count);
        const auto wanted =
            rows.Choose(random, random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % 100));
        device.Ask(wanted, row_bytes);
        const auto got = device.Drain(random, blocks, 60s);
        ExpectRows(wanted, row_bytes, got, where);
        if (HasFatalFailure()) return;
        // Long enough for threads to pause.
        if (random() % 16 == 0) std::this_thread::sleep_for(3ms);
      }
      pusher.Rest();
      if (random() % 4 == 0) std::this_thread::sleep_for(3ms);  // and long enough to sleep
    }
  }
}

TEST(RowPusher, SleepsWhileNothingIsExpected) {
  std::mt19937_64 random = testing::TestRandom(32);
  const Rows rows(random, 128, 50);
  FakeDevice device(8, 1024);
  RowPusher pusher(device.memory(), 4);
  pusher.Expect();
  const auto wanted = rows.Choose(random, 60);
  device.Ask(wanted, 128);
  ExpectRows(wanted, 128, device.Drain(random, 4, 60s), "before");
  pusher.Rest();
  std::this_thread::sleep_for(50ms);
  const double before = CpuSeconds();
  std::this_thread::sleep_for(300ms);
  // Polling threads would take up to 4 x 0.3 s; sleeping ones take almost nothing.
  EXPECT_LT(CpuSeconds() - before, 0.03);
}

// While a step runs that requests nothing, threads check only now and then.
TEST(RowPusher, PausesWhileAStepAsksForNothing) {
  std::mt19937_64 random = testing::TestRandom(33);
  const Rows rows(random, 128, 50);
  FakeDevice device(8, 1024);
  RowPusher pusher(device.memory(), 4);
  pusher.Expect();
  std::this_thread::sleep_for(150ms);
  const double before = CpuSeconds();
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(CpuSeconds() - before, 0.2);
  const auto wanted = rows.Choose(random, 60);
  device.Ask(wanted, 128);
  ExpectRows(wanted, 128, device.Drain(random, 4, 60s), "after");
}

// Stopped threads push nothing, and the device times out; after a restart, its earlier requests are
// forgotten and new transfers arrive.
TEST(RowPusher, GoesOnAfterAFault) {
  std::mt19937_64 random = testing::TestRandom(34);
  const Rows rows(random, 96, 200);
  for (int round = 0; round < 20; ++round) {
    const int64_t count = 2 + static_cast<int64_t>(random() % 6);
    FakeDevice device(count, 96 * 4);
    RowPusher pusher(device.memory(), 1 + static_cast<int>(random() % 4));
    for (int fault = 0; fault < 3; ++fault) {
      pusher.Expect();
      for (int i = 0; i < 3; ++i) {
        const auto wanted = rows.Choose(random, static_cast<int64_t>(random() % 90));
        device.Ask(wanted, 96);
        ExpectRows(wanted, 96, device.Drain(random, 2, 60s),
                   "round " + std::to_string(round) + ", fault " + std::to_string(fault));
        if (HasFatalFailure()) return;
      }
      const bool asked_first = random() % 2 == 0;
      const auto lost = rows.Choose(random, 400);
      // Stopped before the device requests rows, or somewhere in the middle: the ring holds fewer
      // chunks.
      if (!asked_first) pusher.Stop();
      device.Ask(lost, 96);
      if (asked_first) {
        pusher.Stop();
      } else {
        EXPECT_FALSE(device.Drain(random, 2, 2ms).has_value());
      }
      pusher.Restart();
    }
  }
}

TEST(RowPusher, EndsInTheMiddle) {
  std::mt19937_64 random = testing::TestRandom(35);
  const Rows rows(random, 512, 300);
  for (int round = 0; round < 20; ++round) {
    FakeDevice device(3, 2048);
    RowPusher pusher(device.memory(), 3);
    if (round % 2 == 0) pusher.Expect();
    // More than the ring holds: threads wait for places that are never freed.
    device.Ask(rows.Choose(random, 200), 512);
    if (round % 3 == 0) std::this_thread::sleep_for(1ms);
  }
}

}  // namespace
}  // namespace litecache::kv

// What ranks do together, on two processes: this program is a rank of itself, and both run the same
// tests. With --one-rank on one, which needs one GPU only: sums are then what the rank has.
#include "parallel/communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/cuda_devices.h"
#include "device/machine.h"
#include "ops/dense/gather.h"
#include "parallel/process_group.h"
#include "test_seed.h"

namespace litecache::parallel {
namespace {

int ranks = 2;

std::shared_ptr<ProcessGroup> Group() { return ProcessGroup::Start(ranks); }

class CommunicatorTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "cuda" && std::ssize(FindCudaDevices().devices) < ranks) {
      GTEST_SKIP() << "it needs a GPU for each rank";
    }
    machine_ = OpenMachine(DeviceOfRank(GetParam(), Group()->rank()), 1);
    ranks_ = Connect(device(), Group());
    stream_ = device().CreateStream();
  }
  Device& device() { return machine_.compute(); }

  // Every rank knows what all have.
  static std::vector<float> Values(int64_t count, uint64_t salt, int rank) {
    std::mt19937_64 random =
        testing::TestRandom(salt * static_cast<uint64_t>(ranks) + static_cast<uint64_t>(rank));
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random);
    return values;
  }
  Buffer Upload(const std::vector<float>& values) {
    Buffer buffer = device().Allocate(values.size() * sizeof(float));
    device().Upload(buffer.data(), values.data(), buffer.size());
    return buffer;
  }
  std::vector<float> Download(const Buffer& buffer) {
    stream_->Synchronize();
    std::vector<float> values(buffer.size() / sizeof(float));
    device().Download(values.data(), buffer.data(), buffer.size());
    return values;
  }
  static std::vector<double> SumOfAll(int64_t count, uint64_t salt) {
    std::vector<double> sum(static_cast<size_t>(count));
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<float> values = Values(count, salt, rank);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(values[i]);
    }
    return sum;
  }
  // Within a few roundings of values of that size; and the same bits on all ranks.
  static void ExpectSum(const std::vector<float>& sum, const std::vector<double>& expected,
                        double terms) {
    ASSERT_EQ(sum.size(), expected.size());
    double worst = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(sum[i]) - expected[i]));
    }
    EXPECT_LT(worst, 8 * terms * std::numeric_limits<float>::epsilon());
    std::vector<int64_t> bits(sum.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      int32_t word = 0;
      std::memcpy(&word, &sum[i], sizeof(word));
      bits[i] = word;
    }
    std::vector<int64_t> of_rank_0 = bits;
    Group()->Broadcast(&of_rank_0);
    EXPECT_EQ(bits, of_rank_0);
  }

  Machine machine_;
  std::shared_ptr<Communicator> ranks_;
  std::unique_ptr<Stream> stream_;
};

struct Size {
  int64_t rows, cols;
};

TEST_P(CommunicatorTest, Sums) {
  uint64_t salt = 1;
  for (const Size& size : {Size{1, 1}, {3, 7}, {1, 4096}, {17, 1030}, {130, 4100}}) {
    const int64_t count = size.rows * size.cols;
    const Buffer x = Upload(Values(count, ++salt, ranks_->rank()));
    ranks_->AllReduce(*stream_, MatrixView::Of(x.as<float>(), size.rows, size.cols));
    ExpectSum(Download(x), SumOfAll(count, salt), ranks);
  }
}

TEST_P(CommunicatorTest, Concatenations) {
  for (const Size& size : {Size{1, 3}, {5, 129}, {64, 1000}}) {
    const int64_t count = size.rows * size.cols;
    const Buffer own = Upload(Values(count, 77, ranks_->rank()));
    const Buffer all = device().Allocate(static_cast<size_t>(ranks * count) * sizeof(float));
    ranks_->AllGather(*stream_, MatrixView::Of(own.as<float>(), size.rows, size.cols),
                      MatrixView::Of(all.as<float>(), ranks * size.rows, size.cols));
    std::vector<float> expected;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<float> values = Values(count, 77, rank);
      expected.insert(expected.end(), values.begin(), values.end());
    }
    EXPECT_EQ(Download(all), expected);
  }
}

// A step's sums behind one another, also replayed from a recording: each summand is written while
// the other rank may still read the one before.
TEST_P(CommunicatorTest, SumsOfSummands) {
  if (ranks_->NextSummand(1, 4096).data == nullptr) GTEST_SKIP() << "none on this device";
  constexpr int kSums = 9, kSteps = 40;
  for (const Size& size :
       {Size{1, 4}, {1, 4096}, {3, 2880}, {16, 4096}, {256, 4096}, {1531, 5120}}) {
    SCOPED_TRACE(size.rows);
    const int64_t count = size.rows * size.cols;
    const auto view = [&](const Buffer& buffer) {
      return MatrixView::Of(buffer.as<float>(), size.rows, size.cols);
    };
    std::vector<Buffer> parts;
    for (int i = 0; i < kSums; ++i) {
      parts.push_back(Upload(Values(count, 100 + static_cast<uint64_t>(i), ranks_->rank())));
    }
    const Buffer first = Upload(std::vector<float>(static_cast<size_t>(count)));
    const Buffer y = Upload(std::vector<float>(static_cast<size_t>(count)));
    for (int step = 0; step < kSteps; ++step) {
      stream_->Run(static_cast<uint64_t>(count), [&] {
        ranks_->AllReduce(*stream_, view(first));
        for (int i = 0; i < kSums; ++i) {
          const MatrixView summand = ranks_->NextSummand(size.rows, size.cols);
          ops::CopyRows(*stream_, view(parts[static_cast<size_t>(i)]), summand);
          ranks_->SumSummands(*stream_, summand,
                              i == 0 ? ops::Epilogue::kStore : ops::Epilogue::kAdd, view(y));
        }
        // An odd number: the next step begins with the place that this one began with.
        ranks_->NextSummand(size.rows, size.cols);
      });
    }
    std::vector<double> expected(static_cast<size_t>(count));
    for (int i = 0; i < kSums; ++i) {
      const std::vector<double> sum = SumOfAll(count, 100 + static_cast<uint64_t>(i));
      for (size_t at = 0; at < sum.size(); ++at) expected[at] += sum[at];
    }
    ExpectSum(Download(y), expected, ranks * kSums);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CommunicatorTest, ::testing::Values("cpu", "cuda"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace litecache::parallel

int main(int argc, char** argv) {
  // The other rank ends meanwhile: what still watched it at this point of the end would report that
  // to a log that has ended (CMakeLists.txt looks for the message).
  std::atexit([] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); });
  ::testing::InitGoogleTest(&argc, argv);
  litecache::testing::TestSeed();  // of all ranks
  if (argc == 2 && std::string(argv[1]) == "--one-rank") litecache::parallel::ranks = 1;
  const auto group = litecache::parallel::Group();
  uint64_t passed = RUN_ALL_TESTS() == 0 ? 1 : 0;
  const bool here = passed == 1;
  group->Minimum({&passed, 1});
  if (here && passed == 0) std::cerr << "a test failed on another rank\n";
  if (group->rank() != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::quick_exit(0);
  }
  return passed == 1 ? 0 : 1;
}

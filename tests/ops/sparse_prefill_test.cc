#include "ops/sparse_prefill/sparse_prefill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "ops/common/scratch.h"
#include "ops/sparse_prefill_testing.h"

namespace litecache::ops {
namespace {

constexpr DType kDTypes[] = {DType::kBF16, DType::kF32};

// The chunk's first and last queries, those around the borders of blocks, and a few others.
std::vector<int64_t> SomeQueries(Random& random, int64_t rows) {
  std::vector<int64_t> queries;
  for (int64_t r : {int64_t{0}, int64_t{127}, int64_t{128}, int64_t{300}, rows - 1}) {
    if (r < rows) queries.push_back(r);
  }
  for (int i = 0; i < 8; ++i) queries.push_back(random.Integer(0, rows - 1));
  return queries;
}

// Random blocks, kept with a probability of a quarter.
void RunAttention(const SparseCase& c) {
  SCOPED_TRACE(Describe(c));
  Random random(static_cast<uint64_t>(c.head_dim * 131 + c.group * 17 + c.rows));
  const SparseChunk chunk(random, c);
  const ChosenBlocks chosen = RandomBlocks(random, chunk.Head(0), c.q_heads(), 0.25);
  const std::vector<float> sinks = RandomSinks(random, c.q_heads());
  const std::vector<int64_t> queries = SomeQueries(random, c.rows);
  std::vector<AttendedQuery> expected;
  for (int64_t r : queries) {
    for (int64_t j = 0; j < c.q_heads(); ++j) {
      const SparseHead head = chunk.Head(j);
      expected.push_back(AttendKept(head, r, chosen.kept.Of(j, r / head.query_rows),
                                    sinks[static_cast<size_t>(j)]));
    }
  }
  ForEachIsa(2, [&](Stream& stream) {
    const Matrix out = chunk.Attend(stream, &chosen.kept, sinks.data());
    size_t next = 0;
    for (int64_t r : queries) {
      for (int64_t j = 0; j < c.q_heads(); ++j) {
        const auto& [value, bound] = expected[next++];
        for (size_t i = 0; i < value.size(); ++i) {
          ASSERT_NEAR(chunk.Result(out, r, j)[i], value[i], bound[i])
              << "query " << r << ", head " << j << ", element " << i;
        }
      }
    }
  });
}

TEST(SparsePrefill, AttentionOfKeptBlocksMatchesDoublePrecision) {
  for (DType dtype : kDTypes) {
    RunAttention({64, 2, 1, 16, dtype, 0, 700});
    RunAttention({80, 1, 3, 7, dtype, 4099, 333});
    RunAttention({128, 1, 4, 100, dtype, 5000, 257});
    RunAttention({64, 2, 4, 33, dtype, 1001, 130});
  }
}

// A few queries share one task, whose heads keep different blocks.
TEST(SparsePrefill, AttentionOfFewQueries) {
  for (DType dtype : kDTypes) {
    for (int64_t rows : {1, 2, 5, 15, 63}) RunAttention({64, 2, 4, 48, dtype, 2999, rows});
    RunAttention({128, 1, 1, 5, dtype, 6001, 1});
  }
}

TEST(SparsePrefill, AllBlocksKeptIsAttentionBitForBit) {
  Random random(1);
  for (DType dtype : kDTypes) {
    for (const SparseCase& c :
         {SparseCase{64, 2, 3, 17, dtype, 1111, 205}, SparseCase{80, 1, 4, 16, dtype, 0, 331},
          SparseCase{128, 1, 4, 64, dtype, 3001, 1}, SparseCase{128, 2, 1, 9, dtype, 701, 66},
          SparseCase{64, 1, 4, 16, dtype, 2600, 13},
          SparseCase{64, 1, 2, 9, dtype, 600, 70, 1.5f}}) {
      SCOPED_TRACE(Describe(c));
      const SparseChunk chunk(random, c);
      const ChosenBlocks all = RandomBlocks(random, chunk.Head(0), c.q_heads(), 1);
      ForEachIsa(3, [&](Stream& stream) {
        const Matrix whole = chunk.Attend(stream, nullptr);
        EXPECT_TRUE(SameBits(chunk.Attend(stream, &all.kept), whole));
      });
    }
  }
}

TEST(SparsePrefill, ChosenBlocksHaveTheMass) {
  Random random(2);
  for (DType dtype : kDTypes) {
    for (const SparseCase& c :
         {SparseCase{64, 2, 1, 16, dtype, 0, 700}, SparseCase{80, 1, 3, 7, dtype, 4099, 333},
          SparseCase{128, 1, 4, 100, dtype, 5000, 257}, SparseCase{64, 1, 3, 33, dtype, 4321, 1},
          SparseCase{64, 1, 4, 33, dtype, 6007, 19}, SparseCase{64, 1, 1, 16, dtype, 0, 3},
          SparseCase{64, 1, 2, 16, dtype, 17300, 40},
          SparseCase{64, 1, 2, 16, dtype, 3000, 200, 0.7f}}) {
      SCOPED_TRACE(Describe(c));
      const SparseChunk chunk(random, c);
      std::vector<std::vector<BlockShares>> estimates;
      for (int64_t j = 0; j < c.q_heads(); ++j) estimates.push_back(EstimateShares(chunk.Head(j)));
      ForEachIsa(2, [&](Stream& stream) {
        for (double mass : {0.5, 0.9, 1.0}) {
          for (bool whole_end : {false, true}) {
            const ChosenBlocks chosen = chunk.Choose(stream, mass, whole_end);
            for (int64_t j = 0; j < c.q_heads(); ++j) {
              ExpectChosen(chunk.Head(j), estimates[static_cast<size_t>(j)], chosen.kept, j, mass,
                           whole_end);
              if (::testing::Test::HasFatalFailure()) return;
            }
          }
        }
      });
    }
  }
}

TEST(SparsePrefill, ChoiceDoesNotDependOnThreads) {
  Random random(3);
  for (DType dtype : kDTypes) {
    const SparseChunk chunk(random, {64, 2, 3, 16, dtype, 4500, 300});
    std::vector<uint32_t> first;
    for (int threads : {1, 2, 3, 4}) {
      CpuDevice device(threads);
      const ChosenBlocks chosen = chunk.Choose(*device.CreateStream(), 0.8);
      if (threads == 1) first = chosen.bits;
      EXPECT_EQ(chosen.bits, first) << threads << " threads";
    }
  }
}

// One block far back that a block of queries attends, among random keys.
void FindBlock(const SparseCase& c) {
  SCOPED_TRACE(Describe(c));
  Random random(static_cast<uint64_t>(c.head_dim));
  SparseChunk chunk(random, c);
  const int64_t needle = random.Integer(5, 60);
  // Scores of 8 there, where all others are normal: 97% of the attention.
  const float part = 8 / std::sqrt(static_cast<float>(c.head_dim));
  for (int64_t t = 0; t < c.context(); ++t) {
    const bool inside = t / KeptBlocks::kRows == needle;
    chunk.SetKey(random, 0, t, inside ? 0.5f : 1, inside ? part : 0);
  }
  for (int64_t r = 0; r < c.rows; ++r) {
    const bool seeks = r / 128 == 1;
    for (int64_t j = 0; j < c.group; ++j) {
      chunk.SetQuery(random, r, j, seeks ? 0.5f : 1, seeks ? 1 : 0);
    }
  }
  CpuDevice device(2);
  auto stream = device.CreateStream();
  ChosenBlocks chosen = chunk.Choose(*stream, 0.9);
  for (int64_t j = 0; j < c.group; ++j) {
    EXPECT_TRUE(IsKept(chosen.kept, j, 1, needle)) << "query head " << j;
    int64_t far = 0;
    for (int64_t b = 1; !chunk.Head(j).Forced(1, b); ++b) far += IsKept(chosen.kept, j, 1, b);
    EXPECT_LT(far, 8) << "query head " << j;
  }
  // Relative error of queries that attend the block, beside attention of all rows.
  const auto error = [&](int64_t j) {
    const Matrix out = chunk.Attend(*stream, &chosen.kept);
    double difference = 0, norm = 0;
    for (int64_t r = 128; r < 256; r += 17) {
      const AttendedQuery whole = AttendKept(chunk.Head(j), r, nullptr);
      for (size_t i = 0; i < whole.out.size(); ++i) {
        difference += std::pow(chunk.Result(out, r, j)[i] - whole.out[i], 2);
        norm += std::pow(whole.out[i], 2);
      }
    }
    return std::sqrt(difference / norm);
  };
  for (int64_t j = 0; j < c.group; ++j) {
    EXPECT_LT(error(j), 0.1) << "query head " << j;
    const int64_t word = (j * chosen.kept.query_blocks + 1) * chosen.kept.words + needle / 32;
    chosen.bits[static_cast<size_t>(word)] &= ~(1u << needle % 32);
    EXPECT_GT(error(j), 0.5) << "query head " << j << " without the block";
  }
}

TEST(SparsePrefill, FindsABlockThatIsAttended) {
  FindBlock({64, 1, 3, 21, DType::kF32, 8195, 300});
  FindBlock({128, 1, 3, 21, DType::kBF16, 8195, 300});
}

TEST(SparsePrefill, InfiniteScores) {
  Random random(4);
  for (DType dtype : kDTypes) {
    SparseChunk chunk(random, {64, 1, 2, 16, dtype, 4200, 50});
    for (int64_t r = 0; r < 50; ++r) {
      for (int64_t i = 0; i < 128; ++i) chunk.q().Set(2 + r, i, random.Normal(1e38f));
    }
    ForEachIsa(2, [&](Stream& stream) {
      const ChosenBlocks chosen = chunk.Choose(stream, 0.9);
      for (int64_t j = 0; j < 2; ++j) {
        for (int64_t b = 0; b < 34; ++b) {
          EXPECT_TRUE(!chunk.Head(j).Forced(0, b) || IsKept(chosen.kept, j, 0, b));
        }
      }
    });
  }
}

TEST(SparsePrefill, ScratchIsPlanned) {
  Random random(5);
  for (DType dtype : kDTypes) {
    const SparseCase c{64, 2, 3, 16, dtype, 17000, 300};
    const SparseChunk chunk(random, c);
    std::thread([&] {  // without scratch of earlier tests
      CpuDevice device(1);
      const int64_t before = cpu::ScratchBytesHeld();
      chunk.Choose(*device.CreateStream(), 0.9);
      EXPECT_LE(cpu::ScratchBytesHeld() - before,
                static_cast<int64_t>(
                    SparsePrefillScratchBytes(chunk.geometry(), c.q_heads(), c.rows, c.context())));
    })
        .join();
  }
}

}  // namespace
}  // namespace litecache::ops

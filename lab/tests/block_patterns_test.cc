// Recorded blocks of prompts: the file, the map to other lengths, and the recorder.
#include "lab/blocks/block_patterns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "expect_error.h"
#include "kv/cache.h"
#include "lab/blocks/block_recorder.h"
#include "lab/blocks/block_replay.h"
#include "lab/tests/random_patterns.h"
#include "profile/small_model.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::lab {
namespace {

using ::litecache::testing::TemporaryDirectory;

BlockPatterns Parse(const std::string& bytes) {
  return BlockPatterns::Parse({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()},
                              "a.blocks");
}

BlockPatterns AnyPatterns(std::mt19937_64& random) {
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  return RandomPatterns(random, 1 + below(4), 1 + below(6), below(2) == 0 ? 128 : 192,
                        384 * (16 + below(20)));
}

TEST(BlockPatterns, WhatIsWrittenIsReadBack) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 20; ++round) {
    const BlockPatterns p = AnyPatterns(random);
    const TemporaryDirectory directory;
    p.Save(directory.path() / "a.blocks");
    const BlockPatterns read = BlockPatterns::Load(directory.path() / "a.blocks");
    EXPECT_EQ(read.layers, p.layers);
    EXPECT_EQ(read.q_heads, p.q_heads);
    EXPECT_EQ(read.tokens, p.tokens);
    EXPECT_EQ(read.query_rows, p.query_rows);
    EXPECT_EQ(read.mass, p.mass);
    EXPECT_EQ(read.model, p.model);
    EXPECT_EQ(read.text_hash, p.text_hash);
    EXPECT_EQ(read.bits, p.bits);
  }
}

TEST(BlockPatterns, DamagedFilesAreRefusedByName) {
  std::mt19937_64 random = testing::TestRandom();
  const BlockPatterns p = RandomPatterns(random, 1, 2, 128, 6144);
  const std::string bytes = p.Bytes();
  for (size_t length = 0; length < bytes.size(); length += 1 + random() % 31) {
    EXPECT_ERROR(Parse(bytes.substr(0, length)), FileError, "a.blocks");
  }
  // With one byte changed: an error, or blocks that attention can work with.
  for (int round = 0; round < 2000; ++round) {
    std::string changed = bytes;
    changed[random() % changed.size()] ^= static_cast<char>(1 + random() % 255);
    try {
      const BlockPatterns read = Parse(changed);
      for (int64_t head = 0; head < read.layers * read.q_heads; ++head) {
        for (int64_t row = 0; row < read.query_blocks(); ++row) {
          EXPECT_TRUE(read.Keeps(0, head, row, 0));
          EXPECT_TRUE(read.Keeps(0, head, row, row * read.query_rows / 128));
        }
      }
    } catch (const FileError&) {
    }
  }
  EXPECT_ERROR(Parse("a file of another kind"), FileError, "litecache-lab record-blocks");
  EXPECT_ERROR(Parse(bytes + "xy"), FileError, "bytes follow");
  BlockPatterns missing = p;
  missing.Of(0, 1, 20)[0] ^= 1u << 20;
  EXPECT_ERROR(Parse(missing.Bytes()), FileError, "head 1, block 20", "leaves out block 20");
}

TEST(BlockPatterns, AtOtherLengthsTheMiddleIsExtended) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 10; ++round) {
    const BlockPatterns p = AnyPatterns(random);
    const int64_t layer = p.layers - 1, head = p.q_heads - 1;
    for (int64_t first = 0; first < 5 * p.tokens;
         first += 1 + static_cast<int64_t>(random() % 999)) {
      const MappedBlocks mapped = MapBlocks(p.View(), layer, head, first);
      for (int64_t b = 0; b < first / 128; ++b) {
        ASSERT_EQ(mapped.Kept(static_cast<int32_t>(b)),
                  b == 0 || KeptAtPosition(p, layer, head, first, b))
            << "query " << first << ", block " << b << " of a recording of " << p.tokens
            << " tokens, blocks of " << p.query_rows;
      }
    }
    for (int64_t row = 0; row < p.query_blocks(); ++row) {
      const MappedBlocks mapped = MapBlocks(p.View(), layer, head, row * p.query_rows);
      for (int32_t b = 0; b < mapped.own; ++b) {
        ASSERT_EQ(mapped.Kept(b), p.Keeps(layer, head, row, b));
      }
    }
  }
  EXPECT_EQ(RecordedLayer(0, 32, 30), 0);
  EXPECT_EQ(RecordedLayer(31, 32, 30), 29);
  EXPECT_EQ(RecordedLayer(0, 1, 30), 0);
}

// All blocks that a prompt of this length keeps, counted one by one.
double CountedShare(const BlockPatterns& p, int64_t tokens, int64_t layers, int64_t heads) {
  double kept = 0, seen = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const int64_t from = RecordedLayer(layer, layers, p.layers);
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t turn = (layer * heads + head) % p.q_heads;
      for (int64_t first = 0; first < tokens; first += 128) {
        const MappedBlocks mapped = MapBlocks(p.View(), from, turn, first);
        for (int32_t b = 0; b <= mapped.own; ++b) kept += mapped.Kept(b) ? 1 : 0;
        seen += mapped.own + 1;
      }
    }
  }
  return kept / seen;
}

TEST(BlockPatterns, KeptShareIsWhatIsKept) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 5; ++round) {
    const BlockPatterns p = AnyPatterns(random);
    for (const int64_t tokens : {p.tokens, 4 * p.tokens + 77}) {
      // The middle is an estimate: in 3,000 recordings by at most 0.0026.
      EXPECT_NEAR(p.KeptShare(tokens, 3, 5), CountedShare(p, tokens, 3, 5), 0.005);
    }
    if (p.query_rows == 128) {
      EXPECT_NEAR(p.KeptShare(), CountedShare(p, p.tokens, p.layers, p.q_heads), 1e-9);
    }
  }
}

// Keeps the choices of a run in the recorder's words.
class Choices final : public ops::ChoiceOverride {
 public:
  void OnCpu(const ops::ChosenChunk& chunk, ops::ChosenBlocks* chosen) override {
    if (replay != nullptr) replay->OnCpu(chunk, chosen);
    for (int64_t head = 0; head < chunk.q_heads; ++head) {
      for (int64_t i = 0; i < chosen->kept.query_blocks; ++i) {
        for (int64_t b = 0; b <= (chunk.past + chunk.rows - 1) / 128; ++b) {
          if ((chosen->kept.Of(head, i)[b / 32] >> b % 32 & 1) == 0) continue;
          blocks.push_back({chunk.layer, head, chunk.past / 128 + i, b});
        }
      }
    }
  }
  void OnGpu(Device&, Stream&, const ops::ChosenChunk&,
             const ops::cuda::DeviceKeptBlocks&) override {
    FAIL() << "on a CPU";
  }
  std::vector<std::array<int64_t, 4>> blocks;
  ops::ChoiceOverride* replay = nullptr;
};

TEST(BlockRecorder, RecordsWhatPromptsKeep) {
  std::mt19937_64 random = testing::TestRandom();
  CpuDevice device(2);
  const auto stream = device.CreateStream();
  model::ModelConfig config = testing::SmallConfig();
  config.max_context = 8192;
  const auto decoder = model::RandomDecoder(device, config, random(), {.dtype = DType::kF32});
  const int64_t n = 6144 + 128 * static_cast<int64_t>(random() % 5);
  const auto tokens = testing::RandomTokens(random, static_cast<size_t>(n + 70), 211);
  const BlockPatterns p = RecordBlocks(device, *stream, *decoder, tokens, 0.6, nullptr);
  EXPECT_EQ(p.layers, config.layers);
  EXPECT_EQ(p.q_heads, config.q_heads);
  EXPECT_EQ(p.tokens, n);
  EXPECT_EQ(p.query_rows, 128);
  EXPECT_EQ(Parse(p.Bytes()).bits, p.bits);
  EXPECT_LT(p.KeptShare(), 0.9);

  // The same prompt by other chunks. Chunks as the recorder's make the same choice; for others
  // floating-point sums differ, and so may the choice, unless the recording is replayed.
  const kv::Layout layout = config.kv_layout(decoder->kv_dtype());
  const auto run = [&](int64_t chunk, ops::ChoiceOverride* replay) {
    const auto choices = std::make_shared<Choices>();
    choices->replay = replay;
    const auto cache = kv::CreateFullCache(device, layout, uint64_t{1} << 30,
                                           {.mass = 0.6, .context = 1, .results = choices});
    const kv::SequenceId id = cache->Create();
    for (int64_t past = 0; past < n; past += chunk) {
      const int64_t rows = std::min(chunk, n - past);
      std::vector<int32_t> positions(static_cast<size_t>(rows));
      std::iota(positions.begin(), positions.end(), static_cast<int32_t>(past));
      kv::Step step;
      step.rows = rows;
      step.sequences = {{id, 0, rows, past}};
      decoder->Forward(
          *stream, step,
          std::span(tokens).subspan(static_cast<size_t>(past), static_cast<size_t>(rows)),
          positions, *cache, {}, {});
    }
    std::ranges::sort(choices->blocks);
    return choices->blocks;
  };
  std::vector<std::array<int64_t, 4>> recorded;
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    for (int64_t head = 0; head < p.q_heads; ++head) {
      for (int64_t row = 0; row < p.query_blocks(); ++row) {
        for (int64_t b = 0; b <= row; ++b) {
          if (p.Keeps(layer, head, row, b)) recorded.push_back({layer, head, row, b});
        }
      }
    }
  }
  EXPECT_EQ(run(6144, nullptr), recorded);
  BlockReplay replay(std::make_shared<const BlockPatterns>(p), p.layers);
  EXPECT_EQ(run(1920, &replay), recorded);

  EXPECT_ERROR(RecordBlocks(device, *stream, *decoder, std::span(tokens).first(6000), 0.6, nullptr),
               InvalidArgument, "6000 tokens", "6144 at least");
}

}  // namespace
}  // namespace litecache::lab

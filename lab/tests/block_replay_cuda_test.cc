// The kernel that puts recorded blocks in place, compared with the CPU's.
#include "lab/blocks/block_replay_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "lab/blocks/block_replay.h"
#include "lab/tests/random_patterns.h"
#include "ops/device_tables_cuda.h"
#include "test_seed.h"
#include "test_size.h"

namespace litecache::lab::ops::cuda {
namespace {

class CudaBlockReplay : public DeviceTableTest {};

TEST_F(CudaBlockReplay, BlocksAreThoseOfTheCpu) {
  std::mt19937_64 random = testing::TestRandom(77);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const int32_t rounds = testing::Rounds(30);
  for (int round = 0; round < rounds; ++round) {
    const int64_t layers = 1 + below(5);
    const auto patterns = std::make_shared<const BlockPatterns>(RandomPatterns(
        random, 1 + below(3), 1 + below(5), below(2) == 0 ? 128 : 192, 384 * (16 + below(12))));
    ChosenChunk chunk;
    chunk.layer = below(static_cast<uint64_t>(layers));
    chunk.past = round % 5 == 0 ? 1'000'000 + below(1000) : below(30000);
    chunk.rows = 1 + below(2000);
    chunk.q_heads = 1 + below(7);
    chunk.whole_end = below(2) == 0;
    SCOPED_TRACE(fmt::format("layer {}, past {}, rows {}, {} heads, end {}", chunk.layer,
                             chunk.past, chunk.rows, chunk.q_heads, chunk.whole_end));
    const int64_t blocks = (chunk.past + chunk.rows + 127) / 128;
    ChosenBlocks host;
    host.kept.query_rows = below(2) == 0 ? 128 : 192;
    host.kept.query_blocks =
        static_cast<int32_t>((chunk.rows + host.kept.query_rows - 1) / host.kept.query_rows);
    host.kept.words = static_cast<int32_t>((blocks + 31) / 32);
    const int64_t pairs = chunk.q_heads * host.kept.query_blocks;
    host.bits.resize(static_cast<size_t>(pairs * host.kept.words));
    for (uint32_t& word : host.bits) word = static_cast<uint32_t>(random());
    host.kept.bits = host.bits.data();
    const std::vector<uint32_t> before = host.bits;
    DeviceKeptBlocks kept;
    static_cast<KeptBlocks&>(kept) = host.kept;
    kept.list_size = static_cast<int32_t>(blocks);
    kept.bits = Upload(before);
    kept.lists = Upload(std::vector<uint16_t>(static_cast<size_t>(pairs * blocks), 0xffff));
    kept.counts = Upload(std::vector<int32_t>(static_cast<size_t>(pairs), -1));

    BlockReplay replay(patterns, layers);
    replay.OnCpu(chunk, &host);
    replay.OnGpu(*device_, *stream_, chunk, kept);
    const auto bits = Download(kept.bits, host.bits.size());
    const auto lists = Download(kept.lists, static_cast<size_t>(pairs * blocks));
    const auto counts = Download(kept.counts, static_cast<size_t>(pairs));
    ASSERT_EQ(bits, host.bits);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      if (chunk.whole_end && pair % kept.query_blocks == kept.query_blocks - 1) {
        ASSERT_EQ(counts[static_cast<size_t>(pair)], -1) << "the end of a prompt was changed";
        continue;
      }
      std::vector<uint16_t> want;
      for (int64_t b = 0; b < blocks; ++b) {
        const uint32_t word = bits[static_cast<size_t>(pair * kept.words + b / 32)];
        if ((word >> b % 32 & 1) != 0) want.push_back(static_cast<uint16_t>(b));
      }
      ASSERT_EQ(counts[static_cast<size_t>(pair)], static_cast<int32_t>(want.size()));
      const auto* list = lists.data() + pair * blocks;
      ASSERT_TRUE(std::equal(want.begin(), want.end(), list));
      ASSERT_TRUE(
          std::all_of(list + want.size(), list + blocks, [](uint16_t b) { return b == 0xffff; }));
    }
  }
}

}  // namespace
}  // namespace litecache::lab::ops::cuda

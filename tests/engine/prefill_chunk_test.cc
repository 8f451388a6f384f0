#include "engine/prefill_chunk.h"

#include <gtest/gtest.h>

#include "engine/toy_decoder.h"

namespace litecache::engine {
namespace {

TEST(PrefillChunk, IsTheLargestWhoseActivationsAreASmallPartOfAGpusMemory) {
  const ToyDecoder decoder;
  const auto memory = [&](int64_t chunk) { return 16 * decoder.WorkspaceBytes(chunk, 1); };
  const auto chunk = [&](uint64_t bytes) {
    return DefaultPrefillChunk(decoder, DeviceType::kCuda, bytes);
  };
  EXPECT_EQ(chunk(memory(4096)), 4096);
  EXPECT_EQ(chunk(memory(4096) - 1), 2048);
  EXPECT_EQ(chunk(memory(1 << 20)), 8192) << "no product is faster with more rows";
  EXPECT_EQ(chunk(0), 512) << "a prompt of many small steps takes too long";
  EXPECT_EQ(DefaultPrefillChunk(decoder, DeviceType::kCpu, memory(1 << 20)), 512);
}

TEST(PrefillChunk, BesideDecodeIsAPartOfIt) {
  const auto beside = [](int64_t wanted, DeviceType device, int64_t chunk) {
    return PrefillChunkBesideDecode(wanted, device, chunk);
  };
  EXPECT_EQ(beside(-1, DeviceType::kCpu, 512), 128);
  EXPECT_EQ(beside(-1, DeviceType::kCpu, 100), 100);
  EXPECT_EQ(beside(-1, DeviceType::kCuda, 8192), 2048);
  EXPECT_EQ(beside(-1, DeviceType::kCuda, 2), 1);
  EXPECT_EQ(beside(0, DeviceType::kCuda, 8192), 0) << "the scheduler's own meaning";
  EXPECT_EQ(beside(77, DeviceType::kCuda, 8192), 77);
}

}  // namespace
}  // namespace litecache::engine

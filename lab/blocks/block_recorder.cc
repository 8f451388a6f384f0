#include "lab/blocks/block_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "kv/cache.h"
#include "ops/sparse_prefill/choice_override.h"

namespace litecache::lab {
namespace {

// Whole blocks of 128 and of 192 queries, so that blocks of queries begin where they would in one
// chunk.
constexpr int64_t kRecordedChunk = 6144;

class BlockRecorder final : public ops::ChoiceOverride {
 public:
  explicit BlockRecorder(BlockPatterns* patterns) : patterns_(*patterns) {}

  int64_t chunks() const { return chunks_; }

  void OnCpu(const ops::ChosenChunk& chunk, ops::ChosenBlocks* chosen) override {
    Keep(chunk, chosen->kept, chosen->bits);
  }
  void OnGpu(Device& device, Stream& stream, const ops::ChosenChunk& chunk,
             const ops::cuda::DeviceKeptBlocks& chosen) override {
    std::vector<uint32_t> bits(
        static_cast<size_t>(chunk.q_heads * chosen.query_blocks * chosen.words));
    stream.Synchronize();
    device.Download(bits.data(), chosen.bits, bits.size() * sizeof(uint32_t));
    Keep(chunk, chosen, bits);
  }

 private:
  void Keep(const ops::ChosenChunk& chunk, const ops::KeptBlocks& kept,
            const std::vector<uint32_t>& bits) {
    BlockPatterns& p = patterns_;
    if (p.bits.empty()) {
      // A tile of queries is known with the first choice.
      p.query_rows = kept.query_rows;
      LC_CHECK(p.query_rows > 0);
      const int64_t unit = std::lcm(p.query_rows, int64_t{ops::KeptBlocks::kRows});
      p.tokens = p.tokens / unit * unit;
      p.bits.resize(static_cast<size_t>(p.layers * p.q_heads * p.query_blocks() * p.words()));
    }
    LC_CHECK(kept.query_rows == p.query_rows && chunk.past % p.query_rows == 0);
    const auto words = std::min<int64_t>(kept.words, p.words());
    const int64_t first = chunk.past / p.query_rows;
    const int64_t blocks = std::min<int64_t>(kept.query_blocks, p.query_blocks() - first);
    for (int64_t head = 0; head < p.q_heads; ++head) {
      for (int64_t i = 0; i < blocks; ++i) {
        const uint32_t* from = bits.data() + (head * kept.query_blocks + i) * kept.words;
        std::copy_n(from, words, p.Of(chunk.layer, head, first + i));
      }
    }
    ++chunks_;
  }

  BlockPatterns& patterns_;
  int64_t chunks_ = 0;
};

}  // namespace

BlockPatterns RecordBlocks(Device& device, Stream& stream, model::Decoder& decoder,
                           std::span<const int32_t> tokens, double mass,
                           const std::function<void(int64_t done)>& progress) {
  const auto n = static_cast<int64_t>(tokens.size());
  if (n < BlockPatterns::kLeastTokens) {
    throw InvalidArgument("a prompt of {} tokens is too short to be recorded: it needs {} at least",
                          n, BlockPatterns::kLeastTokens);
  }
  const model::ModelConfig& config = decoder.config();
  if (!config.uniform()) {
    throw Unsupported("blocks are recorded of models without sliding windows and states");
  }
  const kv::Layout layout = config.kv_layout(decoder.kv_dtype());
  BlockPatterns patterns;
  patterns.layers = layout.layers;
  patterns.q_heads = layout.q_heads;
  patterns.tokens = n;
  patterns.mass = mass;
  patterns.text_hash = fmt::format(
      "{:016x}", Fnv1a({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()}));
  const auto recorder = std::make_shared<BlockRecorder>(&patterns);
  const uint64_t bytes = kv::CreateFullCache(device, layout, 0)->BytesFor(n).device;
  const auto cache =
      kv::CreateFullCache(device, layout, bytes, {.mass = mass, .context = 1, .results = recorder});
  const kv::SequenceId id = cache->Create();
  std::vector<int32_t> positions(kRecordedChunk);
  for (int64_t past = 0; past < n;) {
    const int64_t rows = std::min(kRecordedChunk, n - past);
    // What is left is attended whole: too few queries for a choice.
    if (rows < ops::SparsePrefill::kLeastRows) break;
    std::iota(positions.begin(), positions.begin() + rows, static_cast<int32_t>(past));
    kv::Step step;
    step.sequences = {{id, 0, rows, past}};
    step.rows = rows;
    decoder.Forward(stream, step,
                    tokens.subspan(static_cast<size_t>(past), static_cast<size_t>(rows)),
                    std::span(positions).first(static_cast<size_t>(rows)), *cache, {}, {});
    stream.Synchronize();
    past += rows;
    if (progress) progress(past);
  }
  cache->Release(id);
  if (recorder->chunks() == 0) {
    throw Unsupported(
        "prompts of this model are not sparse on this device: a GPU needs bf16 rows (--dtype bf16) "
        "and heads of a multiple of 8 values");
  }
  return patterns;
}

}  // namespace litecache::lab

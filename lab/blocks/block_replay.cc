#include "lab/blocks/block_replay.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kv/step/prefill_options.h"
#include "lab/blocks/block_replay_cuda.h"
#include "ops/common/available_cuda.h"

namespace litecache::lab {

BlockReplay::BlockReplay(std::shared_ptr<const BlockPatterns> patterns, int64_t layers)
    : patterns_(std::move(patterns)), layers_(layers) {}

void BlockReplay::OnCpu(const ops::ChosenChunk& chunk, ops::ChosenBlocks* chosen) {
  const ops::KeptBlocks& kept = chosen->kept;
  const RecordedBlocks recorded = patterns_->View();
  const int64_t layer = RecordedLayer(chunk.layer, layers_, patterns_->layers);
  const int64_t blocks = kept.query_blocks - (chunk.whole_end ? 1 : 0);
  for (int64_t head = 0; head < chunk.q_heads; ++head) {
    const int64_t from = RecordedHead(chunk.layer, head, chunk.q_heads, recorded.q_heads);
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t first = i * kept.query_rows;
      const int64_t end = std::min(first + kept.query_rows, chunk.rows);
      const MappedBlocks mapped = MapBlocks(recorded, layer, from, chunk.past + first);
      const int64_t seen = (chunk.past + end - 1) / ops::KeptBlocks::kRows + 1;
      uint32_t* bits = kept.bits + (head * kept.query_blocks + i) * kept.words;
      std::fill_n(bits, kept.words, 0);
      for (int32_t b = 0; b < seen; ++b) {
        if (mapped.Kept(b)) bits[b / 32] |= 1u << b % 32;
      }
    }
  }
}

void BlockReplay::OnGpu(Device& device, Stream& stream, const ops::ChosenChunk& chunk,
                        const ops::cuda::DeviceKeptBlocks& chosen) {
  if constexpr (ops::cuda::kAvailable) {
    const std::vector<uint32_t>& bits = patterns_->bits;
    if (on_device_.size() == 0) {
      on_device_ = device.Allocate(bits.size() * sizeof(uint32_t));
      device.Upload(on_device_.data(), bits.data(), on_device_.size());
    }
    ops::cuda::ReplayBlocks(stream, chunk, patterns_->View(on_device_.as<const uint32_t>()),
                            RecordedLayer(chunk.layer, layers_, patterns_->layers), chosen);
  } else {
    throw Unsupported("this build has no CUDA");
  }
}

bool ReplayBlocks(CachePlan* plan, std::shared_ptr<const BlockPatterns> patterns) {
  auto* prompts = dynamic_cast<SparsePromptPlan*>(plan);
  if (prompts == nullptr || !prompts->sparse_prefill().on()) return false;
  prompts->SetOverride(std::make_shared<BlockReplay>(std::move(patterns), plan->layout().layers));
  return true;
}

}  // namespace litecache::lab

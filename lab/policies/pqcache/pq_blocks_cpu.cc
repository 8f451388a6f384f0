// The block cache: the blocks that a layer's selected rows admit.
#include <map>
#include <utility>

#include "lab/policies/pqcache/pq_cache_cpu.h"

namespace litecache::lab::pqcache {

ops::PagedRows PqCache::Kept(ops::PagedRows rows, int64_t blocks,
                             std::vector<std::vector<std::byte*>>* pages) const {
  pages->emplace_back(rows.pages, rows.pages + blocks);
  rows.pages = pages->back().data();
  return rows;
}

void PqCache::Update(int64_t layer, size_t index) {
  const StepSequence& sequence = decoding_[index];
  Sequence& state = Get(sequence);
  LayerState& own = state.layers[static_cast<size_t>(layer)];
  if (state.index == nullptr || own.counted_at == sequence.past) return;
  // Number of selected rows in each block, over all heads; whole blocks only.
  std::map<int64_t, int64_t> counts;
  const int64_t whole = shape_.WholeBlocks(sequence.past);
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    for (const int32_t position : ChoiceOf(index, head).positions) {
      if (shape_.Block(position) < whole) ++counts[shape_.Block(position)];
    }
  }
  std::vector<std::pair<int64_t, int64_t>> listed;
  for (const auto& [block, count] : counts) listed.emplace_back(count, block);
  Admission& admission = AdmissionOf(sequence.id, layer);
  admission.positions.clear();
  admission.slots.clear();
  for (const int64_t block : own.CountUses(sequence.past, std::move(listed))) {
    const int64_t slot = own.blocks.SlotOf(block);
    for (int64_t i = 0; i < shape_.block_tokens; ++i) {
      admission.positions.push_back(
          static_cast<int32_t>(shape_.sink + block * shape_.block_tokens + i));
      admission.slots.push_back(static_cast<int32_t>(slot * shape_.block_tokens + i));
    }
  }
  if (admission.positions.empty()) return;
  admission.moves.clear();
  admission.pages.clear();
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    admission.moves.push_back(
        {.source = Kept(RowsOf(sequences_.store(), sequence.id, layer, head),
                        sequences_.store().Blocks(sequence.id), &admission.pages),
         .target = Kept(RowsOf(sequences_.cache(), state.cache, layer, head),
                        sequences_.cache().Blocks(state.cache), &admission.pages),
         .positions = admission.positions.data(),
         .slots = admission.slots.data(),
         .count = static_cast<int64_t>(admission.positions.size())});
  }
  const uint64_t rows = static_cast<uint64_t>(shape_.layout.kv_heads) * admission.positions.size();
  stats_.admit.rows += rows;
  stats_.admit.bytes += rows * shape_.format.row_bytes();
  mover_.Move(admission.arrived, &admission.moves);
}

}  // namespace litecache::lab::pqcache

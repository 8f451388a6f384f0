// The block cache of policy pqcache on a GPU: kernels count the blocks of a step's rows; the host
// reads the counts between two steps and decides which blocks the next step admits.
#include <algorithm>
#include <bit>
#include <utility>

#include "device/cuda/check.h"
#include "lab/policies/pqcache/pq_cache_cuda.h"

namespace litecache::lab::pqcache {

using ops::cuda::PqAdmission;
using ops::cuda::PqChange;

int64_t BlocksOf(const Shape& shape, int64_t tokens) {
  const int64_t blocks = std::max<int64_t>(tokens - shape.sink, 0) / shape.block_tokens + 1;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(blocks, 16))));
}

// Counts the blocks of the last steps' rows, and decides which of them are admitted.
void CudaPqCache::CountUses(Sequence* sequence, Tables* tables, int64_t layer, int64_t past,
                            const int32_t* uses) {
  LayerState& state = sequence->layers[static_cast<size_t>(layer)];
  if (state.counted_at == past) return;
  std::vector<std::pair<int64_t, int64_t>> counts;
  const int64_t whole = shape_.WholeBlocks(past);
  for (int64_t block = 0; block < whole; ++block) {
    if (uses[block] > 0) counts.emplace_back(uses[block], block);
  }
  LayerBlocks& blocks = tables->layers[static_cast<size_t>(layer)];
  blocks.block_of.resize(static_cast<size_t>(state.blocks.capacity()), -1);
  for (const int64_t block : state.CountUses(past, std::move(counts))) {
    int64_t& place = blocks.block_of[static_cast<size_t>(state.blocks.SlotOf(block))];
    if (place >= 0) blocks.changed.push_back(place);
    place = block;
    blocks.changed.push_back(block);
    blocks.admitted.push_back(block);
  }
}

void CudaPqCache::CountLastStep() {
  bool waited = false;
  for (auto& [id, tables] : tables_) {
    if (tables.counting_past < 0) continue;
    if (!std::exchange(waited, true)) LC_CUDA(cudaDeviceSynchronize());
    Sequence& sequence = sequences_.Get(id);
    for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
      CountUses(&sequence, &tables, layer, tables.counting_past,
                uses_->host<int32_t>() +
                    (layer * work_sequences_ + tables.counting_index) * work_blocks_);
    }
    tables.counting_past = -1;
  }
}

// Grows the table of cached blocks to the number of the sequence's blocks.
void CudaPqCache::UpdateSlots(const StepSequence& part, Tables* tables) {
  const int64_t blocks = BlocksOf(shape_, part.past + 1);
  if (blocks <= tables->blocks) return;
  const Sequence& sequence = sequences_.Get(part.id);
  std::vector<int32_t> slots(static_cast<size_t>(shape_.layout.layers * blocks), -1);
  for (size_t layer = 0; layer < tables->layers.size(); ++layer) {
    for (const int64_t block : tables->layers[layer].block_of) {
      if (block < 0) continue;
      slots[layer * static_cast<size_t>(blocks) + static_cast<size_t>(block)] =
          static_cast<int32_t>(sequence.layers[layer].blocks.SlotOf(block));
    }
  }
  tables->slots = Buffer();
  tables->slots = device_.Allocate(slots.size() * sizeof(int32_t));
  device_.Upload(tables->slots.data(), slots.data(), tables->slots.size());
  tables->blocks = blocks;
}

// Lists the blocks admitted by the last steps, which the device has to fetch.
void CudaPqCache::ListUpdates() {
  if (decoding_.empty()) return;
  int32_t* begins = Begins();
  int32_t admissions = 0, changes = 0;
  for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
    begins[layer] = admissions;
    for (size_t i = 0; i < decoding_.size(); ++i) {
      Tables& tables = TablesOf(decoding_[i].id);
      const Sequence& sequence = sequences_.Get(decoding_[i].id);
      if (sequence.index == nullptr) continue;
      const auto l = static_cast<size_t>(layer);
      LayerBlocks& blocks = tables.layers[l];
      blocks.sending_admitted = blocks.admitted.size();
      blocks.sending_changed = blocks.changed.size();
      const auto slot_of = [&](int64_t block) {
        return static_cast<int32_t>(sequence.layers[l].blocks.SlotOf(block));
      };
      for (const int64_t block : blocks.admitted) {
        Admissions()[admissions++] = {static_cast<int32_t>(i), static_cast<int32_t>(block),
                                      slot_of(block)};
      }
      for (const int64_t block : blocks.changed) {
        Changes()[changes++] = {tables.slots.as<int32_t>() + layer * tables.blocks + block,
                                slot_of(block)};
      }
    }
  }
  begins[shape_.layout.layers] = admissions;
  *ChangeCount() = changes;
}

// Drops the updates sent with a step that has ended.
void CudaPqCache::ForgetUpdates(Tables* tables) {
  const auto forget = [](std::vector<int64_t>* list, size_t* count) {
    list->erase(list->begin(), list->begin() + static_cast<int64_t>(*count));
    *count = 0;
  };
  for (LayerBlocks& blocks : tables->layers) {
    CountRows(&stats_.admit,
              blocks.sending_admitted *
                  static_cast<uint64_t>(shape_.block_tokens * shape_.layout.kv_heads));
    forget(&blocks.admitted, &blocks.sending_admitted);
    forget(&blocks.changed, &blocks.sending_changed);
  }
}

size_t CudaPqCache::UsesBytes() const {
  return static_cast<size_t>(shape_.layout.layers * work_sequences_ * work_blocks_) *
         sizeof(int32_t);
}

PqAdmission* CudaPqCache::Admissions() const {
  return reinterpret_cast<PqAdmission*>(ChangeCount() + 1);
}

PqChange* CudaPqCache::Changes() const {
  const int64_t admissions = work_sequences_ * shape_.layout.layers * shape_.blocks;
  auto at = reinterpret_cast<uintptr_t>(Admissions() + admissions);
  return reinterpret_cast<PqChange*>((at + 15) / 16 * 16);
}

ops::cuda::PqUpdates CudaPqCache::Updates() const {
  return {.begins = Begins(),
          .admissions = Admissions(),
          .change_count = ChangeCount(),
          .changes = Changes(),
          .layers = static_cast<int32_t>(shape_.layout.layers),
          .device_begins = device_begins_,
          .device_admissions = device_admissions_};
}

}  // namespace litecache::lab::pqcache

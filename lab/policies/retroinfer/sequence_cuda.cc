#include "lab/policies/retroinfer/sequence_cuda.h"

#include <algorithm>
#include <vector>

namespace litecache::lab {

void CudaWaveSequence::SendPages(CudaDevice& gpu, const PagePool& pool, const RetroShape& shape,
                                 const SequenceTable& store_table, const SequenceTable& index_table,
                                 SequenceId id) {
  store.Follow(gpu, store_table, id);
  index_pages.Follow(gpu, index_table, id);
  const int64_t of_steady = steady.length(), of_cache = cache.length(), of_buffer = buffer.length();
  if (of_steady != steady_pages_ || of_cache != cache_pages_ || of_buffer != buffer_pages_ ||
      forked) {
    const int64_t room = SteadyRoom(shape);
    rows.Update(gpu, shape.lists, room + of_cache + of_buffer, 0,
                [&](int64_t list, int64_t b) -> std::byte* {
                  if (b < of_steady) return steady.Pages(list)[static_cast<size_t>(b)];
                  if (b < room) return nullptr;
                  b -= room;
                  if (b < of_cache) return cache.Pages(list)[static_cast<size_t>(b)];
                  const int64_t head = list % shape.layout.kv_heads;
                  return buffer.Pages(head)[static_cast<size_t>(b - of_cache)];
                });
    steady_pages_ = of_steady;
    cache_pages_ = of_cache;
    buffer_pages_ = of_buffer;
  }
  for (StagedPages& pages : staged) pages.Update(gpu, pool, shape.layout.kv_heads);
}

void CudaWaveSequence::SendTables(CudaDevice& gpu, const RetroShape& shape) {
  if (clusters == 0 || (!stale_tables && clusters_ == clusters)) return;
  const int64_t blocks = shape.CacheBlocks(nprobe);
  std::vector<int32_t> tables(static_cast<size_t>(shape.lists * (2 * clusters + blocks)));
  int32_t* begin = tables.data();
  int32_t* first = begin + shape.lists * clusters;
  int32_t* next = first + shape.lists * clusters;
  for (int64_t list = 0; list < shape.lists; ++list) {
    const auto l = static_cast<size_t>(list);
    begin = std::copy_n(begins[l].begin(), clusters, begin);
    const BlockCache& of_list = caches[l];
    for (int64_t c = 0; c < clusters; ++c) *first++ = of_list.First(static_cast<int32_t>(c));
    for (int64_t b = 0; b < blocks; ++b) *next++ = of_list.Next(static_cast<int32_t>(b));
  }
  const size_t bytes = tables.size() * sizeof(int32_t);
  if (tables_.size() < bytes) {
    tables_ = Buffer();
    tables_ = gpu.Allocate(bytes);
  }
  gpu.Upload(tables_.data(), tables.data(), bytes);
  clusters_ = clusters;
  blocks_ = blocks;
  stale_tables = false;
}

void CudaWaveSequence::PutPages(ops::cuda::StepSequence* target) const {
  target->pages[ops::cuda::kStore] = store.device();
  target->pages[kWaveRows] = rows.device();
  target->pages[kWaveIndex] = index_pages.device();
  for (size_t b = 0; b < std::size(kWaveStaging); ++b) {
    target->pages[kWaveStaging[b]] = staged[b].device();
  }
}

ops::cuda::WaveSequence CudaWaveSequence::View(const RetroShape& shape) const {
  const int64_t room = SteadyRoom(shape), of_clusters = shape.lists * clusters_;
  return {.clusters = static_cast<int32_t>(clusters),
          .ranked = static_cast<int32_t>(nprobe),
          .unranked = static_cast<int32_t>(estimated),
          .buffer_blocks = static_cast<int32_t>(shape.BufferBlocks(nprobe)),
          .indexed_end = static_cast<int32_t>(indexed_end),
          .cache_page = static_cast<int32_t>(room),
          .buffer_page = static_cast<int32_t>(room + cache.length()),
          .cluster_stride = static_cast<int32_t>(clusters_),
          .block_stride = static_cast<int32_t>(blocks_),
          .begins = tables_.as<int32_t>(),
          .first_block = tables_.as<int32_t>() + of_clusters,
          .next_block = tables_.as<int32_t>() + 2 * of_clusters};
}

}  // namespace litecache::lab

#include "lab/policies/retroinfer/wave_update_cuda.h"

namespace litecache::lab {

void WaveUpdate::Run(int64_t block_tokens) {
  BlockCache& cache = sequence->caches[static_cast<size_t>(list)];
  for (auto* each : {&hits, &misses, &miss_blocks, &links_begin, &links, &dropped_}) each->clear();
  items.clear();
  rows = miss_rows = 0;
  // The lists of all layers together exceed any CPU cache: independent loads are prefetched.
  for (const int32_t cluster : retrieved) {
    __builtin_prefetch(&sequence->begins[static_cast<size_t>(list)][static_cast<size_t>(cluster)]);
    cache.Prefetch(cluster);
  }
  for (const int32_t cluster : retrieved) {
    const int32_t size = sequence->Size(list, cluster);
    rows += static_cast<uint64_t>(size);
    if (cache.First(cluster) != BlockCache::kNone) {
      hits.push_back(cluster);
      continue;
    }
    misses.push_back(cluster);
    miss_blocks.push_back(static_cast<int32_t>((size + block_tokens - 1) / block_tokens));
    miss_rows += static_cast<uint64_t>(size);
  }
  const int64_t admitted = cache.Update(hits, misses, miss_blocks, &dropped_);
  for (const int32_t cluster : dropped_) {
    items.push_back({.cluster = cluster});
    links_begin.push_back(0);
  }
  int32_t source = 0;
  for (size_t i = 0; i < static_cast<size_t>(admitted); ++i) {
    const int32_t cluster = misses[i];
    items.push_back({.cluster = cluster,
                     .block = cache.First(cluster),
                     .source = source,
                     .rows = sequence->Size(list, cluster)});
    links_begin.push_back(static_cast<int32_t>(links.size()));
    for (int32_t block = cache.First(cluster); block != BlockCache::kNone;
         block = cache.Next(block)) {
      links.push_back(block);
    }
    source += miss_blocks[i];
  }
}

}  // namespace litecache::lab

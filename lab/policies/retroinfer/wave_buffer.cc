#include "lab/policies/retroinfer/wave_buffer.h"

#include <algorithm>

#include "device/cpu/cpu_device.h"
#include "lab/policies/retroinfer/this_thread.h"

namespace litecache::lab {

std::span<WaveAccess> WaveBuffer::Begin(size_t count) {
  Settle();
  if (accesses_.size() < count) accesses_.resize(count);
  count_ = count;
  return std::span(accesses_).first(count);
}

void WaveBuffer::Lookup(Stream& stream) {
  AsCpu(stream).pool().ParallelFor(static_cast<int64_t>(count_), 1,
                                   [&](int64_t begin, int64_t end, int) {
                                     for (int64_t i = begin; i < end; ++i) {
                                       LookupOne(&accesses_[static_cast<size_t>(i)]);
                                     }
                                   });
}

void WaveBuffer::LookupOne(WaveAccess* access) const {
  WaveAccess& a = *access;
  const WaveSequence& sequence = *a.sequence;
  const BlockCache& cache = sequence.caches[static_cast<size_t>(a.list)];
  const int64_t block_tokens = shape_.o.block_tokens;
  a.slots.clear();
  a.hits.clear();
  a.misses.clear();
  a.miss_blocks.clear();
  a.miss_rows.clear();
  a.miss_slots.clear();
  a.hit_rows = 0;
  const auto cached = sequence.cache.Pages(a.list), buffer = sequence.buffer.Pages(a.head);
  a.pages.assign(cached.begin(), cached.end());
  a.pages.insert(a.pages.end(), buffer.begin(), buffer.end());
  int64_t next = static_cast<int64_t>(cached.size()) * shape_.page_block_rows;  // slot
  int64_t left = shape_.BufferBlocks(sequence.nprobe);
  for (a.retrieved = 0; a.retrieved < static_cast<int64_t>(a.ranked.size()); ++a.retrieved) {
    const int32_t cluster = a.ranked[static_cast<size_t>(a.retrieved)];
    const int32_t size = a.clusters.Size(cluster);
    const int64_t blocks = (size + block_tokens - 1) / block_tokens;
    if (blocks > left) break;
    left -= blocks;
    int32_t block = cache.First(cluster);
    if (block != BlockCache::kNone) {
      a.hits.push_back(cluster);
      a.hit_rows += size;
      for (int64_t row = 0; row < size; block = cache.Next(block)) {
        const int64_t first = block * block_tokens;
        for (int64_t i = 0; i < block_tokens && row < size; ++i, ++row) {
          a.slots.push_back(static_cast<int32_t>(first + i));
        }
      }
      continue;
    }
    a.misses.push_back(cluster);
    a.miss_blocks.push_back(static_cast<int32_t>(blocks));
    const int32_t begin =
        sequence.begins[static_cast<size_t>(a.list)][static_cast<size_t>(cluster)];
    for (int32_t i = 0; i < size; ++i) {
      a.slots.push_back(static_cast<int32_t>(next + i));
      a.miss_slots.push_back(static_cast<int32_t>(next + i));
      a.miss_rows.push_back(begin + i);
    }
    next += blocks * block_tokens;
  }
}

template <class Job>
void WaveBuffer::Submit(const std::shared_ptr<TaskGroup>& group, const Job& job) {
  const auto jobs = std::min(static_cast<size_t>(threads_.size()), count_);
  for (size_t i = 0; i < jobs; ++i) {
    threads_.Submit(group, [this, job, begin = count_ * i / jobs, end = count_ * (i + 1) / jobs] {
      for (size_t a = begin; a < end; ++a) job(&accesses_[a]);
    });
  }
}

void WaveBuffer::StartTransfer() {
  Submit(transfers_, [this](WaveAccess* a) {
    const ops::MoveWork move{.source = a->store,
                             .target = a->Rows(shape_),
                             .positions = a->miss_rows.data(),
                             .slots = a->miss_slots.data(),
                             .count = static_cast<int64_t>(a->miss_rows.size())};
    ops::MoveRows(ThisThread(), {&move, 1});
  });
}

void WaveBuffer::WaitTransfer() { transfers_->Wait(); }

void WaveBuffer::UpdateOne(WaveAccess* access) const {
  WaveAccess& a = *access;
  BlockCache& cache = a.sequence->caches[static_cast<size_t>(a.list)];
  const int64_t admitted = cache.Update(a.hits, a.misses, a.miss_blocks);
  const auto block_tokens = static_cast<int32_t>(shape_.o.block_tokens);
  a.admitted_from.clear();
  a.admitted_to.clear();
  size_t row = 0;
  for (int64_t i = 0; i < admitted; ++i) {
    const int32_t cluster = a.misses[static_cast<size_t>(i)];
    const int32_t size = a.clusters.Size(cluster);
    int32_t block = cache.First(cluster);
    for (int32_t r = 0; r < size; block = cache.Next(block)) {
      for (int32_t j = 0; j < block_tokens && r < size; ++j, ++r) {
        a.admitted_from.push_back(a.miss_slots[row++]);
        a.admitted_to.push_back(block * block_tokens + j);
      }
    }
  }
}

void WaveBuffer::StartUpdate() {
  Submit(updates_, [this](WaveAccess* a) { UpdateOne(a); });
}

void WaveBuffer::StartAdmission() {
  try {
    updates_->Wait();
  } catch (...) {
    ClearCaches();
    throw;
  }
  Submit(admissions_, [this](WaveAccess* a) {
    const ops::MoveWork move{.source = a->Rows(shape_),
                             .target = a->Rows(shape_),
                             .positions = a->admitted_from.data(),
                             .slots = a->admitted_to.data(),
                             .count = static_cast<int64_t>(a->admitted_from.size())};
    ops::MoveRows(ThisThread(), {&move, 1});
  });
}

void WaveBuffer::Settle() noexcept {
  bool failed = false;
  for (const auto& group : {transfers_, updates_, admissions_}) {
    try {
      group->Wait();
    } catch (...) {
      failed = true;
    }
  }
  if (failed) ClearCaches();
  count_ = 0;
}

void WaveBuffer::ClearCaches() {
  for (size_t i = 0; i < count_; ++i) {
    accesses_[i].sequence->caches[static_cast<size_t>(accesses_[i].list)].Clear();
  }
}

}  // namespace litecache::lab

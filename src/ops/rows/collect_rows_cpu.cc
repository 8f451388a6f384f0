#include <algorithm>
#include <atomic>
#include <cstring>

#include "ops/common/row_address.h"
#include "ops/rows/collect_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rows/collect_rows_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// How far ahead rows are prefetched, in bytes, as in MoveRows.
constexpr size_t kAheadBytes = 4096;

template <bool kStreaming>
HWY_INLINE void CopyRow(const uint8_t* HWY_RESTRICT source, size_t bytes,
                        uint8_t* HWY_RESTRICT target) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= bytes; i += lanes) {
    const auto v = hn::LoadU(d, source + i);
    if constexpr (kStreaming) {
      hn::Stream(v, d, target + i);
    } else {
      hn::StoreU(v, d, target + i);
    }
  }
  std::memcpy(target + i, source + i, bytes - i);
}

template <bool kStreaming>
void Collect(const uint64_t* sources, int64_t count, size_t row_bytes, std::byte* target) {
  const auto row = [&](int64_t i) { return reinterpret_cast<const std::byte*>(sources[i]); };
  const auto ahead = static_cast<int64_t>(std::max<size_t>(kAheadBytes / row_bytes, 2));
  for (int64_t i = 0; i < std::min(ahead, count); ++i) PrefetchRow(row(i), row_bytes);
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count) PrefetchRow(row(i + ahead), row_bytes);
    CopyRow<kStreaming>(reinterpret_cast<const uint8_t*>(row(i)), row_bytes,
                        reinterpret_cast<uint8_t*>(target) + static_cast<size_t>(i) * row_bytes);
  }
}

void CollectCached(const uint64_t* sources, int64_t count, size_t row_bytes, std::byte* target) {
  Collect<false>(sources, count, row_bytes, target);
}

void CollectStreaming(const uint64_t* sources, int64_t count, size_t row_bytes, std::byte* target) {
  // Streaming stores need whole vectors and aligned addresses.
  const size_t lanes = hn::Lanes(hn::ScalableTag<uint8_t>());
  if (row_bytes % lanes != 0 || reinterpret_cast<uintptr_t>(target) % lanes != 0) {
    return Collect<false>(sources, count, row_bytes, target);
  }
  Collect<true>(sources, count, row_bytes, target);
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops {
namespace cpu {

HWY_EXPORT(CollectCached);
HWY_EXPORT(CollectStreaming);

void Collect(const uint64_t* sources, int64_t count, size_t row_bytes, std::byte* target,
             CollectStores stores) {
  if (stores == CollectStores::kStreaming) {
    HWY_DYNAMIC_DISPATCH(CollectStreaming)(sources, count, row_bytes, target);
  } else {
    HWY_DYNAMIC_DISPATCH(CollectCached)(sources, count, row_bytes, target);
  }
}

}  // namespace cpu

void CollectRows(const uint64_t* sources, int64_t count, size_t row_bytes, std::byte* target,
                 CollectStores stores) {
  cpu::Collect(sources, count, row_bytes, target, stores);
}

void FlushStores() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace litecache::ops
#endif

// Index arithmetic of policy litecache's windows and slots, for the host and for kernels.
//
// In a sequence of n tokens, sink = [0, sink) and recent = [n - recent, n); the candidates are
// between them. An offloaded head's slots: [0, sink) sink rows, [sink, CacheBegin()) the ring of
// the last rows, then cached rows. The ring holds the recent rows, `carry` more, which a head that
// reuses its rows attends because its last refresh could not select them, and one extra slot: the
// row that leaves stays until its step is committed, so that a failed step can be run again.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/common/host_device.h"

namespace litecache::ops {

// How many rows a head keeps.
template <class Int>
struct RowBudget {
  double share = 0;  // of the context; used when tokens == 0
  Int tokens = 0;
  // Above 0: the share is that of this context; rows grow with the context's square root instead of
  // in proportion.
  Int share_context = 0;

  // Rows of n tokens, rounded up, at least one. 0.1 * 30 is a little more than 3 in floating point;
  // such intended whole numbers are not rounded up.
  LC_HOST_DEVICE Int Rows(Int n) const {
    if (tokens > 0) return tokens;
    constexpr double kShareRounding = 1e-9;
    auto length = static_cast<double>(n);
    if (share_context > 0) {
      length = sqrt(length * static_cast<double>(share_context));  // correctly rounded everywhere
    }
#ifdef __CUDA_ARCH__
    // Rounded twice as on the host; nvcc would fuse the two operations.
    const double rows = ceil(__dsub_rn(__dmul_rn(share, length), kShareRounding));
#else
    const double rows = std::ceil(share * length - kShareRounding);
#endif
    return rows > 1 ? static_cast<Int>(rows) : 1;
  }
};

template <class Int>
struct SlotWindows {
  Int sink = 0, recent = 0, carry = 0;
  RowBudget<Int> budget;
  bool by_need = false;     // a selection may take fewer than Rows(): select/need.h
  double slots_factor = 1;  // slots for cached rows relative to the number of rows, >= 1

  // The same windows in another integer type.
  template <class To>
  SlotWindows<To> As() const {
    return {.sink = static_cast<To>(sink),
            .recent = static_cast<To>(recent),
            .carry = static_cast<To>(carry),
            .budget = {.share = budget.share,
                       .tokens = static_cast<To>(budget.tokens),
                       .share_context = static_cast<To>(budget.share_context)},
            .by_need = by_need,
            .slots_factor = slots_factor};
  }

  LC_HOST_DEVICE Int SinkRows(Int n) const { return n < sink ? n : sink; }
  LC_HOST_DEVICE Int RecentBegin(Int n) const {
    return n - recent > sink ? n - recent : SinkRows(n);
  }
  LC_HOST_DEVICE Int Candidates(Int n) const { return RecentBegin(n) - SinkRows(n); }
  // The most rows that a head selects.
  LC_HOST_DEVICE Int Rows(Int n) const { return budget.Rows(n); }
  // The fewest rows of a selection of up to `rows` by need; 0: it takes all of them.
  LC_HOST_DEVICE Int FewestRows(Int rows) const { return by_need ? (rows + 9) / 10 : 0; }
  // Whether all candidates are cached, so that no lookup is needed.
  LC_HOST_DEVICE bool AllFit(Int n) const { return Candidates(n) <= Rows(n); }
  // First token of the ring that a head attends if it was last refreshed when the recent window
  // began at `refreshed`.
  LC_HOST_DEVICE Int WindowBegin(Int n, Int refreshed) const {
    const Int oldest = n - recent - carry;
    return oldest > refreshed ? oldest : refreshed;
  }

  LC_HOST_DEVICE Int RingSlots() const { return recent + carry + 1; }
  // First slot of cached rows.
  LC_HOST_DEVICE Int CacheBegin() const { return sink + RingSlots(); }
  // Slot of a sink or recent token.
  LC_HOST_DEVICE Int FixedSlot(Int token) const {
    return token < sink ? token : sink + token % RingSlots();
  }
  // Slots for cached rows; never decreases as n grows.
  LC_HOST_DEVICE Int CacheSlots(Int n) const {
    const Int candidates = Candidates(n);
    const double slots = std::ceil(static_cast<double>(Rows(n)) * slots_factor);
    return slots < static_cast<double>(candidates) ? static_cast<Int>(slots) : candidates;
  }
};

}  // namespace litecache::ops

#include "lab/forced/forced_selection.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "lab/forced/force_clusters.h"
#include "lab/forced/force_rows.h"

namespace litecache::lab {
namespace {

constexpr int64_t kWordBits = 32;
constexpr int64_t kBlockWords = ops::kForcedBlockWords;
static_assert(ops::kForcedBlock == TraceMap::kBlock);

// The order in which positions are removed from a set that is too large.
uint32_t Order(int32_t position) {
  uint32_t x = static_cast<uint32_t>(position) * 0x9e3779b1u;
  x ^= x >> 15;
  x *= 0x85ebca77u;
  return x ^ x >> 13;
}

// Reduces or extends `rows` to about `wanted` rows of [0, context).
std::vector<int32_t> Resized(std::vector<int32_t> rows, int64_t wanted, int64_t context) {
  const auto size = static_cast<int64_t>(rows.size());
  wanted = std::min(wanted, context);
  if (size >= wanted) {
    std::nth_element(rows.begin(), rows.begin() + wanted, rows.end(),
                     [](int32_t a, int32_t b) { return Order(a) < Order(b); });
    rows.resize(static_cast<size_t>(wanted));
    std::sort(rows.begin(), rows.end());
    return rows;
  }
  if (rows.empty()) return rows;
  std::vector<bool> there(static_cast<size_t>(context));
  for (const int32_t row : rows) there[static_cast<size_t>(row)] = true;
  int64_t missing = wanted - size;
  for (int64_t distance = 1; missing > 0 && distance < context; ++distance) {
    for (int64_t i = 0; i < size && missing > 0; ++i) {
      const auto next = static_cast<size_t>((rows[static_cast<size_t>(i)] + distance) % context);
      if (there[next]) continue;
      there[next] = true;
      --missing;
    }
  }
  std::vector<int32_t> resized;
  for (size_t i = 0; i < there.size(); ++i) {
    if (there[i]) resized.push_back(static_cast<int32_t>(i));
  }
  return resized;
}

}  // namespace

ForcedSelection::ForcedSelection(std::shared_ptr<const Trace> trace, const Layout& layout,
                                 double share)
    : trace_(std::move(trace)),
      map_(*trace_, layout),
      layers_(layout.layers),
      kv_heads_(layout.kv_heads),
      words_((trace_->context + TraceMap::kBlock - 1) / TraceMap::kBlock * kBlockWords) {
  const auto wanted = static_cast<int64_t>(std::ceil(share * static_cast<double>(trace_->context)));
  bits_.resize(trace_->rows.size() * static_cast<size_t>(words_));
  for (size_t i = 0; i < trace_->rows.size(); ++i) {
    uint32_t* bits = bits_.data() + i * static_cast<size_t>(words_);
    for (const int32_t row : Resized(trace_->rows[i], wanted, trace_->context)) {
      bits[row / kWordBits] |= 1u << row % kWordBits;
    }
  }
}

int64_t ForcedSelection::StepAt(int64_t layer, int64_t kv_head, int64_t past, int64_t row) const {
  return map_.Step(layer, kv_head,
                   ops::ForcedStep(static_cast<int32_t>(past), static_cast<int32_t>(row),
                                   static_cast<int32_t>(map_.period())));
}

const uint32_t* ForcedSelection::BitsOf(int64_t layer, int64_t kv_head, int64_t step) const {
  const int64_t set =
      (map_.Layer(layer) * trace_->kv_heads + map_.Head(kv_head)) * trace_->steps + step;
  return bits_.data() + set * words_;
}

void ForcedSelection::Rows(int64_t layer, int64_t kv_head, int64_t past, int64_t row, int64_t begin,
                           int64_t end, int64_t count, int32_t* positions) const {
  LC_CHECK(begin >= 0 && count >= 0 && count <= end - begin, "{} of [{}, {})", count, begin, end);
  if (count == 0) return;
  const uint32_t* bits = BitsOf(layer, kv_head, StepAt(layer, kv_head, past, row));
  const auto recorded = static_cast<int32_t>(words_ / kBlockWords);
  const int32_t blocks = ops::ForcedBlocks(static_cast<int32_t>(past));
  wanted_.clear();
  for (auto word = static_cast<int32_t>(begin / kWordBits); word * kWordBits < end; ++word) {
    uint32_t left =
        bits[ops::ForcedWord(word, blocks, recorded)] &
        ops::CandidateBits(word, static_cast<int32_t>(begin), static_cast<int32_t>(end));
    for (; left != 0; left &= left - 1) {
      wanted_.push_back(static_cast<int32_t>(word * kWordBits) + std::countr_zero(left));
    }
  }
  const ops::ForceOverlapWork work{.kept = ops::ForcedHead::kWhole,
                                   .cached = wanted_.data(),
                                   .cached_count = static_cast<int64_t>(wanted_.size()),
                                   .begin = begin,
                                   .end = end,
                                   .selected = positions,
                                   .count = count};
  ops::ForceRows(work);
}

void ForcedSelection::Clusters(int64_t layer, int64_t kv_head, int64_t past, int64_t row,
                               int64_t clusters, int64_t count, int32_t* ids) const {
  LC_CHECK(has_clusters() && count <= clusters);
  const int64_t recorded = trace_->clusters;
  const auto ranked =
      trace_->Clusters(map_.Layer(layer), map_.Head(kv_head), StepAt(layer, kv_head, past, row));
  int64_t taken = 0;
  std::vector<bool> used(static_cast<size_t>(recorded));
  const auto take = [&](int64_t id) {
    used[static_cast<size_t>(id)] = true;
    const auto first_of = [&](int64_t of) {
      return ops::FirstCluster(static_cast<int32_t>(of), static_cast<int32_t>(clusters),
                               static_cast<int32_t>(recorded));
    };
    for (int32_t c = first_of(id); c < first_of(id + 1) && taken < count; ++c) ids[taken++] = c;
  };
  for (const uint16_t id : ranked) {
    if (!used[id]) take(id);
  }
  for (int64_t id = 0; id < recorded && taken < count; ++id) {
    if (!used[static_cast<size_t>(id)]) take(id);
  }
  LC_CHECK(taken == count);
}

std::vector<uint32_t> ForcedSelection::Bits() const {
  std::vector<uint32_t> all;
  all.reserve(static_cast<size_t>(period() * layers_ * kv_heads_ * words_));
  for (int64_t t = 0; t < period(); ++t) {
    for (int64_t layer = 0; layer < layers_; ++layer) {
      for (int64_t head = 0; head < kv_heads_; ++head) {
        const uint32_t* bits = BitsOf(layer, head, map_.Step(layer, head, t));
        all.insert(all.end(), bits, bits + words_);
      }
    }
  }
  return all;
}

std::vector<uint16_t> ForcedSelection::ClusterOrder() const {
  const int64_t recorded = trace_->clusters;
  std::vector<uint16_t> all;
  std::vector<bool> used(static_cast<size_t>(recorded));
  for (int64_t t = 0; t < period(); ++t) {
    for (int64_t layer = 0; layer < layers_; ++layer) {
      for (int64_t head = 0; head < kv_heads_; ++head) {
        used.assign(used.size(), false);
        for (const uint16_t id :
             trace_->Clusters(map_.Layer(layer), map_.Head(head), map_.Step(layer, head, t))) {
          if (!used[id]) all.push_back(id);
          used[id] = true;
        }
        for (int64_t id = 0; id < recorded; ++id) {
          if (!used[static_cast<size_t>(id)]) all.push_back(static_cast<uint16_t>(id));
        }
      }
    }
  }
  return all;
}

}  // namespace litecache::lab

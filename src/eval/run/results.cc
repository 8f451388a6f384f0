#include "eval/run/results.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "eval/run/result_fields.h"

namespace litecache::eval {

KvSums& KvSums::operator+=(const KvSums& other) {
  for (const auto& [name, field] : kKvFields) this->*field += other.*field;
  return *this;
}

KvSums Difference(const EngineStats& before, const EngineStats& now) {
  const auto sums = [](const EngineStats& stats) {
    const auto number = [](uint64_t value) { return static_cast<double>(value); };
    KvSums kv;
    kv.lookups = number(stats.kv.lookups);
    kv.hits = number(stats.kv.hits);
    kv.verified = number(stats.kv.verified);
    kv.corrected = number(stats.kv.corrected);
    kv.miss_rows = number(stats.kv.miss.rows);
    kv.miss_bytes = number(stats.kv.miss.bytes);
    kv.prefetch_rows = number(stats.kv.prefetch.rows);
    kv.prefetch_bytes = number(stats.kv.prefetch.bytes);
    kv.spill_bytes = number(stats.kv.spill.bytes);
    kv.prefill_bytes = number(stats.kv.prefill.bytes);
    kv.stream_bytes =
        number(stats.kv.stream.bytes + stats.kv.activations.bytes + stats.kv.admit.bytes);
    kv.read_bytes = number(stats.kv.bytes_read);
    kv.decode_tokens = static_cast<double>(stats.generated_tokens);
    for (const kv::HeadCounters& head : stats.kv_heads) {
      kv.recall_held += head.recall_held;
      kv.recall_retrieved += head.recall_retrieved;
      kv.recall_refreshes += number(head.recall_refreshes);
      if (head.recall_held > 0) kv.recall_lookups += number(head.lookups);
    }
    return kv;
  };
  KvSums difference = sums(now);
  const KvSums then = sums(before);
  for (const auto& [name, field] : kKvFields) difference.*field -= then.*field;
  return difference;
}

void Results::Append(Results other) {
  const auto move = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  move(other.runs, runs);
  move(other.configurations, configurations);
  move(other.predictions, predictions);
  move(other.windows, windows);
  move(other.heads, heads);
}

int64_t BucketEnd(int64_t position) {
  return std::max<int64_t>(1024, static_cast<int64_t>(std::bit_ceil(
                                     static_cast<uint64_t>(std::max<int64_t>(position + 1, 1)))));
}

}  // namespace litecache::eval

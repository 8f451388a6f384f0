#include "profile/speed.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/median.h"
#include "kv/forwarding_cache.h"
#include "kv/layout.h"
#include "ops/rows/move_rows.h"

namespace litecache::profile {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

class TimingCache final : public kv::ForwardingCache {
 public:
  using kv::ForwardingCache::ForwardingCache;

  void Attend(Stream& stream, int64_t layer, const kv::Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    stream.Synchronize();
    (layer == 0 ? first_ : last_) = Clock::now();
    inner().Attend(stream, layer, step, q, k, v, softmax, out);
  }
  // From the first layer's attention to the last one's.
  double seconds() const { return Seconds(first_, last_); }

 private:
  Clock::time_point first_, last_;
};

}  // namespace

double MeasureLayerSeconds(Device& device, Stream& stream, model::Decoder& decoder, int64_t rows) {
  constexpr int64_t kChunk = 256;
  constexpr int64_t kSteps = 48;
  const model::ModelConfig& config = decoder.config();
  const kv::Layout layout = config.kv_layout(decoder.kv_dtype());
  const int64_t prompt = std::clamp<int64_t>(rows, 1, config.max_context - kSteps);
  const auto probe = kv::CreateFullCache(device, layout, 0);
  const auto full = kv::CreateFullCache(device, layout, probe->BytesFor(prompt + kSteps).device);
  TimingCache cache(*full);
  const kv::SequenceId id = cache.Create();
  std::vector<double> times;
  const auto forward = [&](int64_t past, int64_t count, bool decode) {
    std::vector<int32_t> tokens(static_cast<size_t>(count)), positions(static_cast<size_t>(count));
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>((past + (&token - tokens.data())) % config.vocab);
    }
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(past));
    kv::Step step;
    step.sequences = {{id, 0, count, past, decode}};
    step.rows = count;
    step.decode_rows = decode ? 1 : 0;
    const auto start = Clock::now();
    decoder.Forward(stream, step, tokens, positions, cache, {}, {});
    stream.Synchronize();
    if (decode) {
      times.push_back(config.layers > 1 ? cache.seconds() / static_cast<double>(config.layers - 1)
                                        : Seconds(start, Clock::now()));
    }
  };
  for (int64_t past = 0; past < prompt; past += kChunk) {
    forward(past, std::min(kChunk, prompt - past), false);
  }
  for (int64_t i = 0; i < kSteps; ++i) forward(prompt + i, 1, true);
  cache.Release(id);
  return Median(times);
}

double MeasureLinkBandwidth(Device& device, Stream& stream, const kv::Layout& layout,
                            int64_t context, double share) {
  constexpr uint64_t kWorkingSet = uint64_t{512} << 20;
  constexpr int kPasses = 9;
  const ops::RowFormat format = ops::FormatOf(layout.dtype, layout.head_dim);
  const int64_t page_tokens = kv::PageTokens(layout);
  const int64_t pages = (context + page_tokens - 1) / page_tokens;
  const auto k = std::max<int64_t>(1, static_cast<int64_t>(share * static_cast<double>(context)));
  const size_t page_bytes = static_cast<size_t>(page_tokens) * format.row_bytes();
  const size_t head_bytes = page_bytes * static_cast<size_t>(pages);
  const auto heads = std::max<int64_t>(
      2,
      static_cast<int64_t>(std::min<uint64_t>(
          kWorkingSet / head_bytes, static_cast<uint64_t>(layout.layers * layout.kv_heads) * 16)));

  const Buffer store = device.Allocate(head_bytes * static_cast<size_t>(heads));
  const Buffer slots = device.Allocate(static_cast<size_t>(k * heads) * format.row_bytes());
  std::fill_n(store.as<char>(), store.size(), char{1});
  std::fill_n(slots.as<char>(), slots.size(), char{0});

  std::mt19937_64 random(1);
  std::vector<int32_t> all(static_cast<size_t>(context)), order(static_cast<size_t>(k));
  std::iota(all.begin(), all.end(), 0);
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<std::byte*>> page_lists(static_cast<size_t>(heads)),
      slot_lists(static_cast<size_t>(heads));
  std::vector<std::vector<int32_t>> positions(static_cast<size_t>(heads));
  std::vector<ops::MoveWork> work;
  for (int64_t head = 0; head < heads; ++head) {
    const auto h = static_cast<size_t>(head);
    for (int64_t page = 0; page < pages; ++page) {
      page_lists[h].push_back(store.as<std::byte>() + h * head_bytes +
                              static_cast<size_t>(page) * page_bytes);
    }
    slot_lists[h] = {slots.as<std::byte>() + h * static_cast<size_t>(k) * format.row_bytes()};
    std::sample(all.begin(), all.end(), std::back_inserter(positions[h]), k, random);
    work.push_back({{page_lists[h].data(), page_tokens, format},
                    {slot_lists[h].data(), k, format},
                    positions[h].data(),
                    order.data(),
                    k});
  }
  std::vector<double> times;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    ops::MoveRows(stream, work);
    stream.Synchronize();
    times.push_back(Seconds(start, Clock::now()));
  }
  return static_cast<double>(k * heads) * static_cast<double>(format.row_bytes()) / Median(times);
}

}  // namespace litecache::profile

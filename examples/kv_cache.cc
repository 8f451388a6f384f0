// Uses the KV cache without a model: a long synthetic context whose queries drift from topic to
// topic, decoded with policy litecache and, for comparison, with full attention.
//
//   kv_cache_example [CONTEXT [STEPS]]
//
// Prints hit ratio, bytes moved, memory and the error against full attention; fails if that error
// exceeds a few percent, which the same number of random rows would not reach.

#include "litecache/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <vector>

namespace {

using litecache::KvCache;
using litecache::KvOptions;
using litecache::KvPart;
using litecache::KvShape;

constexpr KvShape kShape{.layers = 2, .q_heads = 8, .kv_heads = 2, .head_dim = 64};
constexpr int64_t kGroup = kShape.q_heads / kShape.kv_heads;
constexpr int64_t kQCols = kShape.q_heads * kShape.head_dim;
constexpr int64_t kKvCols = kShape.kv_heads * kShape.head_dim;
constexpr int64_t kTopics = 40;
constexpr int64_t kTokensATopic = 32;  // a passage of the context
constexpr int64_t kStepsATopic = 50;   // duration of the change from one topic to the next
constexpr int64_t kChunk = 256;
constexpr double kLargestError = 0.05;

// Keys of a passage share its topic's direction; queries rotate from one topic to the next.
class Text {
 public:
  Text() : topics_(kShape.layers * kTopics * kKvCols) {
    for (float& x : topics_) x = normal_(random_);
  }

  void Draw(int64_t layer, int64_t token, float* q, float* k, float* v) {
    const float* key_topic = Topic(layer, token / kTokensATopic);
    for (int64_t i = 0; i < kKvCols; ++i) {
      k[i] = key_topic[i] + 0.5f * normal_(random_);
      v[i] = key_topic[(i + 1) % kKvCols] + normal_(random_);
    }
    const float angle = 1.5707963f * static_cast<float>(token % kStepsATopic) / kStepsATopic;
    const float* from = Topic(layer, token / kStepsATopic * 7);
    const float* to = Topic(layer, (token / kStepsATopic + 1) * 7);
    for (int64_t head = 0; head < kShape.q_heads; ++head) {
      for (int64_t i = 0; i < kShape.head_dim; ++i) {
        const int64_t at = head / kGroup * kShape.head_dim + i;
        q[head * kShape.head_dim + i] =
            2 * (std::cos(angle) * from[at] + std::sin(angle) * to[at]) + 0.2f * normal_(random_);
      }
    }
  }

 private:
  const float* Topic(int64_t layer, int64_t topic) const {
    return topics_.data() + (layer * kTopics + topic % kTopics) * kKvCols;
  }

  std::mt19937 random_{17};
  std::normal_distribution<float> normal_;
  std::vector<float> topics_;
};

// Runs one step of `rows` tokens from token `first` on through every cache; returns the outputs of
// the last layer, one vector per cache.
std::vector<std::vector<float>> Run(Text& text, int64_t first, const KvPart& part,
                                    const std::vector<KvCache*>& caches) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(kShape.head_dim));
  const auto size = [&](int64_t cols) { return static_cast<size_t>(part.rows * cols); };
  std::vector<float> q(size(kQCols)), k(size(kKvCols)), v(size(kKvCols));
  std::vector<std::vector<float>> outs(caches.size(), std::vector<float>(size(kQCols)));
  for (KvCache* cache : caches) cache->BeginStep({&part, 1});
  for (int64_t layer = 0; layer < kShape.layers; ++layer) {
    for (int64_t row = 0; row < part.rows; ++row) {
      text.Draw(layer, first + row, &q[static_cast<size_t>(row * kQCols)],
                &k[static_cast<size_t>(row * kKvCols)], &v[static_cast<size_t>(row * kKvCols)]);
    }
    for (size_t i = 0; i < caches.size(); ++i) {
      caches[i]->Attend(layer, q.data(), k.data(), v.data(), scale, outs[i].data());
    }
  }
  for (KvCache* cache : caches) cache->EndStep();
  return outs;
}

double Mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

int Example(int64_t context, int64_t steps) {
  KvOptions options;
  options.policy = "litecache";
  options.budget = litecache::KvBudget::Parse("10%");
  options.retriever = "quest";
  options.thresholds = "fixed";
  options.eta = 0.95;
  options.device_memory = uint64_t{2} << 30;
  options.host_memory = uint64_t{2} << 30;
  const auto lite = KvCache::Create(kShape, options);
  options.policy = "full";
  const auto full = KvCache::Create(kShape, options);
  const std::vector<KvCache*> caches = {full.get(), lite.get()};

  // Both caches assign the same sequence ids.
  const int64_t id = full->CreateSequence();
  lite->CreateSequence();
  Text text;
  for (int64_t token = 0; token < context; token += kChunk) {
    Run(text, token, {.sequence = id, .rows = std::min(kChunk, context - token)}, caches);
  }
  double error = 0, norm = 0;
  for (int64_t i = 0; i < steps; ++i) {
    const auto outs = Run(text, context + i, {.sequence = id, .rows = 1, .decode = true}, caches);
    for (size_t c = 0; c < outs[0].size(); ++c) {
      const auto expected = static_cast<double>(outs[0][c]);
      error += std::pow(static_cast<double>(outs[1][c]) - expected, 2);
      norm += expected * expected;
    }
  }
  error = std::sqrt(error / norm);

  const auto stats = lite->GetStats();
  const auto all = full->GetStats();
  const auto ratio = static_cast<double>(stats.hits) / static_cast<double>(stats.lookups);
  std::printf("context %lld, %lld decode steps, budget %s\n", static_cast<long long>(context),
              static_cast<long long>(steps), options.budget.ToString().c_str());
  std::printf("hit ratio        %5.1f%% of %llu lookups\n", 100 * ratio,
              static_cast<unsigned long long>(stats.lookups));
  std::printf("moved to device  %8.2f MiB on misses, %.2f MiB at the start of decode\n",
              Mib(stats.miss.bytes), Mib(stats.fill.bytes));
  std::printf("moved to host    %8.2f MiB of the prompt, %.2f MiB while decoding\n",
              Mib(stats.prefill.bytes), Mib(stats.spill.bytes));
  std::printf(
      "memory           %8.2f MiB device + %.2f MiB host; full attention: %.2f MiB device\n",
      Mib(stats.used.device), Mib(stats.used.host), Mib(all.used.device));
  std::printf("error            %8.4f of full attention's output\n", error);
  if (error < kLargestError) return 0;
  std::fprintf(stderr, "the error is above %g\n", kLargestError);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t context = argc > 1 ? std::atoll(argv[1]) : 4096;
  const int64_t steps = argc > 2 ? std::atoll(argv[2]) : 200;
  if (context < 1 || steps < 1) {
    std::fprintf(stderr, "usage: kv_cache_example [CONTEXT [STEPS]], both at least 1\n");
    return 2;
  }
  try {
    return Example(context, steps);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

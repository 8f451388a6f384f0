// A retroinfer cache next to a plain double-precision oracle of the published algorithm: compares
// clusters, selections, the contents of the block cache, and outputs.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "device/machine.h"
#include "kv/cache_plan.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/options.h"
#include "lab/policies/retroinfer/policy.h"
#include "lab/policies/retroinfer/wave_cache.h"

namespace litecache::lab {

// For whatever policy the options name.
inline std::unique_ptr<CachePlan> PlanRetroCache(const Layout& layout, const KvOptions& options,
                                                 DeviceType device = DeviceType::kCpu) {
  return lab::retroinfer::MakePolicy().plan(layout, options, nullptr, device);
}

inline constexpr TierBytes kMuch{.device = uint64_t{4} << 30, .host = uint64_t{4} << 30};

inline constexpr Layout kRetroLayout{
    .layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 24, .dtype = DType::kF32};

// Small sizes, so that hundreds of steps cross many boundaries.
inline KvOptions SmallRetroOptions() {
  KvOptions options;
  options.policy = "retroinfer";
  options.recent_tokens = 13;
  RetroInferOptions& o = options.settings.Of<RetroInferOptions>();
  o.cluster_tokens = 8;
  o.segment_tokens = 150;
  o.update_tokens = 64;
  o.retrieval = 0.08;
  o.estimation = 0.3;
  o.block_tokens = 4;
  return options;
}

struct RetroPart {
  SequenceId id = 0;
  int64_t rows = 1;
  bool decode = true;
  bool ends_prompt = false;
};

// Decode parts come first.
Step MakeRetroStep(const Cache& cache, std::vector<RetroPart> parts);

// [layer][rows * columns]; drawn in the order of the step's sequences from their own generators, so
// that a sequence's rows do not depend on the sequences that run with it.
struct RetroInputs {
  std::vector<std::vector<float>> q, k, v;
};

class RetroSource {
 public:
  RetroSource(const Layout& layout, uint64_t seed) : layout_(layout), seed_(seed) {}
  RetroInputs Draw(const Step& step);
  void Fork(SequenceId parent, SequenceId child);

 private:
  struct Stream {
    std::mt19937_64 random;
    std::vector<std::vector<float>> query;    // [layer]: rotates slowly
    std::vector<std::vector<float>> centers;  // keys are drawn around them
  };
  Layout layout_;
  uint64_t seed_;
  std::map<SequenceId, Stream> streams_;
};

// The outputs of a step's first `layers` layers. device: the cache's.
std::vector<std::vector<float>> RunRetro(Device& device, Cache& cache, Stream& stream,
                                         const Step& step, RetroInputs& inputs, int64_t layers);

class RetroDriver {
 public:
  RetroDriver(const Layout& layout, const KvOptions& options, uint64_t seed,
              const std::string& device = "cpu", const TierBytes& budget = kMuch, int threads = 2);

  SequenceId Create();
  SequenceId Fork(SequenceId parent);
  void Release(SequenceId id);
  // Runs and compares. fail_after >= 0: first makes an attempt that stops after that many layers.
  void Step(const std::vector<RetroPart>& parts, int64_t fail_after = -1);
  // Begins a step, runs some of its layers, and abandons it.
  void Abandon(const std::vector<RetroPart>& parts, int64_t layers);

  WaveCache& cache() { return *cache_; }
  const RetroShape& shape() const { return shape_; }
  uint64_t overflows() const { return overflows_; }  // selections too large for the buffer

 private:
  using Row = std::vector<double>;
  // One (sequence, layer, KV head).
  struct Head {
    std::vector<Row> keys, values;  // as stored, one per token
    std::vector<std::vector<int64_t>> clusters;
    std::vector<Row> centroids, sums;
    std::list<int32_t> lru;
  };
  struct Sequence {
    std::vector<Head> heads;  // [layers * kv_heads]
    bool prompt = false;
    int64_t indexed_end = 0, clusters = 0, nprobe = 0, estimated = 0;  // expected values
    // Number of tokens when the first prompt ended, as announced to the cache by a chunk, a fork,
    // or the first decode step.
    int64_t prompt_end = 0;
    bool told = false;
  };

  void Append(const kv::Step& step, const RetroInputs& inputs);
  // Computes the expected sizes of the index at a decode step over `past` tokens.
  void Expect(Sequence* sequence, int64_t past) const;
  // Reads the tokens of new clusters; each token must be in exactly one of them.
  void Learn(const StepSequence& part, Sequence* sequence);
  void CheckDecode(const StepSequence& part, int64_t layer, const float* q, const float* out);
  void CheckPrefill(const StepSequence& part, int64_t layer, const float* q, const float* out);
  void CheckChoice(const Sequence& sequence, const Head& head, const RetroChoice& choice,
                   const float* q);
  void CheckCache(SequenceId id, const Sequence& sequence, int64_t layer, int64_t head,
                  const RetroChoice& choice);
  void CheckMemory(const kv::Step& step);

  Layout layout_;
  RetroShape shape_;
  Machine machine_;
  std::unique_ptr<litecache::Stream> stream_;
  std::unique_ptr<Cache> owned_;
  WaveCache* cache_;
  RetroSource source_;
  float scale_;
  std::map<SequenceId, Sequence> sequences_;
  WaveCache::Choices choices_;
  struct Charge {
    bool fork = false;
    int64_t shared = 0, tokens = 0;
    bool forked = false;
  };
  std::map<SequenceId, Charge> charges_;
  uint64_t overflows_ = 0;
};

}  // namespace litecache::lab

// A litecache cache and its reference: random smooth queries through both, with everything
// compared.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/machine.h"
#include "kv/cache_plan.h"
#include "kv/charges.h"
#include "kv/heads/head_plan.h"
#include "kv/heads/profile.h"
#include "kv/litecache/cache_cpu.h"
#include "kv/litecache/reference.h"
#include "kv/random_life.h"

namespace litecache::kv {

// Queries, keys and values of one step, layer by layer. A sequence's queries rotate slowly, so that
// lookups both hit and miss.
struct StepInputs {
  std::vector<std::vector<float>> q, predicted, k, v;  // [layer][rows * columns]
};

class QuerySource {
 public:
  // turn: the cosine between adjacent steps' queries is about 1 - turn.
  QuerySource(const Layout& layout, double turn, uint64_t seed)
      : layout_(layout), turn_(turn), random_(seed) {}
  StepInputs Draw(const Step& step);
  void Fork(SequenceId parent, SequenceId child) { queries_[child] = queries_[parent]; }

 private:
  Layout layout_;
  double turn_;
  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
  std::map<SequenceId, std::vector<std::vector<float>>> queries_;  // [layer][q_heads * head_dim]
};

// Runs a step's layers through a cache, with predictions if it needs them. layers: fewer for a step
// that stops half way; the caller calls EndStep. arena: memory for the arrays, kept between calls
// so that steps with the same ReplayKey() are replayed. *apart: whether operations of a step that
// is not replayed were issued on some of the GPU's SMs only (device/cuda/sm_split.h). Returns
// [layer][rows * q_heads * head_dim].
std::vector<std::vector<float>> RunLayers(Cache& cache, Device& device, Stream& stream,
                                          const Step& step, StepInputs& inputs, float scale,
                                          int64_t layers, Buffer* arena = nullptr,
                                          bool* apart = nullptr);

// Enough memory for any test.
inline constexpr TierBytes kPlenty{.device = uint64_t{4} << 30, .host = uint64_t{4} << 30};

// Whether slots keep the codes of host rows in fp8 or int8, which the reference assumes if options
// request such rows.
bool SlotsKeepCodes(const Layout& layout, KvOptions options, const std::string& device);

// options.retriever must not be "auto".
class Harness {
 public:
  Harness(const Layout& layout, const KvOptions& options, std::shared_ptr<const Profile> profile,
          double turn, uint64_t seed, const TierBytes& budget = kPlenty,
          const std::string& device = "cpu");

  SequenceId Create();
  SequenceId Fork(SequenceId parent);
  void Release(SequenceId id);
  void TakeBack(SequenceId id, int64_t tokens);
  int64_t Removable(SequenceId id) const { return cache_->Length(id); }
  // Runs and compares. fail_after >= 0: first makes an attempt that stops after that many layers.
  void Step(const std::vector<Part>& parts, int64_t fail_after = -1);

  // Begins a step, runs some of its layers, and abandons it.
  void Abandon(const std::vector<Part>& parts, int64_t layers);

  // Only on the CPU.
  LiteCache& cache() { return dynamic_cast<LiteCache&>(*cache_); }
  Cache& any_cache() { return *cache_; }
  Reference& reference() { return reference_; }
  const HeadPlan& plan() const { return *plan_->heads(); }
  float scale() const { return scale_; }
  // Number of steps issued on some of the GPU's SMs, while the pulls used others.
  int steps_apart() const { return steps_apart_; }
  // Values of the outputs, and those that were not compared: where rounding decides which rows a
  // resident head selects, which cannot be seen.
  int64_t values() const { return values_; }
  int64_t uncertain() const { return uncertain_; }
  // Whether this machine's GPU and driver support such steps; if not, sets *why_not.
  bool CanSetSmsApart(std::string* why_not);

 private:
  kv::Step Begin(const std::vector<Part>& parts);
  bool AttendsWhole(const kv::Step& step) const;
  void Compare(const kv::Step& step, int64_t layer, StepInputs& inputs,
               const std::vector<float>& out);

  std::vector<float> Label(SequenceId id, int64_t layer, int64_t head);
  std::vector<int32_t> CachedPositions(SequenceId id, int64_t layer, int64_t head);

  Machine machine_;
  Layout layout_;
  bool verifies_;                // KvOptions::verify_predictions
  int64_t resident_whole_;       // KvOptions
  bool attended_whole_ = false;  // the last step
  std::unique_ptr<CachePlan> plan_;
  std::unique_ptr<Stream> stream_;
  Buffer arena_;
  std::unique_ptr<Cache> cache_;
  Reference reference_;
  QuerySource source_;
  float scale_;
  int steps_apart_ = 0;
  int64_t values_ = 0, uncertain_ = 0;
  Charges charges_;
};

}  // namespace litecache::kv

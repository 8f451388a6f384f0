// The KV cache on its own: paged KV rows of many sequences under hard memory budgets, attended in
// full or through policy litecache, for any program that computes queries, keys and values itself.
//
// A decoder calls it once a layer, where it would call attention:
//
//   auto cache = KvCache::Create(shape, options);
//   const int64_t id = cache->CreateSequence();
//   cache->BeginStep({{{.sequence = id, .rows = 512}}});            // a chunk of a prompt
//   for (layer ...) cache->Attend(layer, q, k, v, scale, out);
//   cache->EndStep();
//   cache->BeginStep({{{.sequence = id, .decode = true}}});         // then a token at a time
//   ...
//
// examples/kv_cache.cc is a complete program. Errors are exceptions derived from std::runtime_error
// with a message that names the cause: an option or argument that cannot work, a budget that would
// be passed, a profile of another model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "litecache/kv_options.h"
#include "litecache/kv_stats.h"

namespace litecache {

// Shapes of a model's KV. Query head j reads KV head j / (q_heads / kv_heads).
struct KvShape {
  int64_t layers = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool f32_rows = false;  // keep rows in f32 instead of bf16
  int64_t hidden = 0;     // values of a layer's input, for policy kvpr
};

// Keys and values (k, v [rows][kv_heads * head_dim], keys after their rotary embedding) of tokens
// at positions first_position on, from the inputs x [rows][hidden] that were given for them.
using KvProjection = std::function<void(int64_t layer, const float* x, int64_t rows,
                                        int64_t first_position, float* k, float* v)>;

// One sequence's part of a step.
struct KvPart {
  int64_t sequence = 0;
  int64_t rows = 1;
  // A generated token (rows = 1), which may attend to a part of the rows, as the policy decides. A
  // prompt's chunk, of one row too, attends to all of them.
  bool decode = false;
};

// Not thread-safe. Runs on the CPU, on its own threads. All arrays are f32, row-major, contiguous:
// q and out [rows of the step][q_heads * head_dim], k and v [rows of the step][kv_heads *
// head_dim], keys and queries after their rotary embedding. A step's rows are those of its parts,
// one part after the other.
class KvCache {
 public:
  // options.device_memory (policy full, too) and options.host_memory (policy litecache) are the
  // budgets in bytes and have to be set; device memory here is the cache's alone. options.profile:
  // a file that `litecache profile` wrote for the model with these shapes; "auto" is none.
  // threads = 0: one a core.
  static std::unique_ptr<KvCache> Create(const KvShape& shape, const KvOptions& options,
                                         int threads = 0);
  virtual ~KvCache() = default;

  // Bytes a sequence of `tokens` tokens takes at most, in each tier.
  virtual kv::TierBytes BytesFor(int64_t tokens) const = 0;

  // An empty sequence; ids are never reused.
  virtual int64_t CreateSequence() = 0;
  // A sequence with the rows of `parent`; memory is shared until one of them writes.
  virtual int64_t ForkSequence(int64_t parent) = 0;
  // Frees a sequence's memory. Between steps.
  virtual void ReleaseSequence(int64_t sequence) = 0;
  // Tokens in a sequence, those of a step in progress not counted.
  virtual int64_t Length(int64_t sequence) const = 0;

  // Makes room for the parts' rows; decode parts first. Throws, having changed nothing, when a
  // budget would be passed. A step that is not ended may be begun again, whole or in parts.
  virtual void BeginStep(std::span<const KvPart> parts) = 0;
  // Whether Prefetch() of a layer helps (options.prefetch).
  virtual bool WantsPrediction(int64_t layer) const = 0;
  // Before Attend(layer), in ascending order, at the start of the layer that many layers before it
  // as options.prefetch says: what the decode rows' queries of `layer` will be, as far as is known
  // by then; q [decode rows][q_heads * head_dim]. Looks up and fetches with these.
  virtual void Prefetch(int64_t layer, const float* q, float scale) = 0;
  // Whether KeepInputs() has to be called before every Attend() (policy kvpr).
  virtual bool WantsInputs() const = 0;
  // x [rows of the step][hidden]: what the layer's keys and values are computed from. Both
  // arguments are used until Attend(layer) returns.
  virtual void KeepInputs(int64_t layer, const float* x, const KvProjection& projection) = 0;
  // Layer by layer, in order: stores the rows' keys and values, and
  // out = softmax(scale * q.K) V over the rows each query sees.
  virtual void Attend(int64_t layer, const float* q, const float* k, const float* v, float scale,
                      float* out) = 0;
  // The step's rows now belong to their sequences.
  virtual void EndStep() = 0;

  virtual kv::Stats GetStats() const = 0;
  // Counters of every (layer, KV head), [layers][kv_heads]; empty for policy full.
  virtual std::span<const kv::HeadCounters> Heads() const = 0;
};

}  // namespace litecache

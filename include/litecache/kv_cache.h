// The KV cache on its own: paged KV rows of many sequences under hard memory budgets, attended in
// full or through policy litecache, for any program that computes queries, keys and values itself.
//
// A decoder calls it once per layer in place of its attention:
//
//   auto cache = KvCache::Create(shape, options);
//   const int64_t id = cache->CreateSequence();
//   cache->BeginStep({{{.sequence = id, .rows = 512}}});            // a chunk of a prompt
//   for (layer ...) cache->Attend(layer, q, k, v, scale, out);
//   cache->EndStep();
//   cache->BeginStep({{{.sequence = id, .decode = true}}});         // then one token at a time
//   ...
//
// examples/kv_cache.cc is a complete program. Errors are exceptions derived from std::runtime_error
// whose message names the cause: an invalid option or argument, an exceeded budget, a profile of
// another model.
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
  bool f32_rows = false;  // store rows in f32 instead of bf16
  int64_t hidden = 0;     // size of a layer's input vector, for policy kvpr
};

// Computes keys and values (k, v [rows][kv_heads * head_dim], f32, keys after RoPE) of tokens at
// consecutive positions from first_position on, from their inputs x [rows][hidden] f32.
using KvProjection = std::function<void(int64_t layer, const float* x, int64_t rows,
                                        int64_t first_position, float* k, float* v)>;

// A GPU, and the CUDA stream on which its caller works.
struct KvGpu {
  int index = 0;           // CUDA's number of the GPU
  void* stream = nullptr;  // a cudaStream_t, which stays the caller's; null: the default stream
};

// One sequence's part of a step.
struct KvPart {
  int64_t sequence = 0;
  int64_t rows = 1;
  // A generated token (rows = 1), for which the policy may attend a subset of the rows. A prompt
  // chunk attends all rows, also when it has one row.
  bool decode = false;
};

// Type of the elements of a caller's arrays.
enum class KvElement { kF32, kBF16, kF16 };

// Not thread-safe. Runs on the CPU, on its own threads, or on a GPU. Arrays are f32 unless a call
// says otherwise, row-major, contiguous: q and out [rows of the step][q_heads * head_dim], k and v
// [rows of the step][kv_heads * head_dim], keys and queries after RoPE. A step's rows are those of
// its parts, one part after the other.
class KvCache {
 public:
  // options.device_memory (policies full and litecache) and options.host_memory (policy litecache)
  // are the budgets in bytes and must be set; device memory is here used by the cache alone.
  // options.profile: a file that `litecache profile` wrote for the model with these shapes; "auto"
  // means none. threads = 0: one per core. Throws InvalidArgument, FileError or CapacityError.
  static std::unique_ptr<KvCache> Create(const KvShape& shape, const KvOptions& options,
                                         int threads = 0);
  // The same on a GPU: arrays are in the GPU's memory, and so are the bytes of
  // options.device_memory; those of options.host_memory are pinned. Prefetch() and Attend() enqueue
  // their work and return; it reads and writes the arrays after all that was enqueued on gpu.stream
  // before, and what is enqueued there afterwards sees the results. EndStep() waits for the step's
  // work and throws what went wrong in it. Destroy the cache before the stream. Arrays begin at
  // multiples of 16 bytes. Throws also Unsupported, in a library without CUDA and for policy kvpr,
  // and an error for a GPU that cannot be used.
  static std::unique_ptr<KvCache> CreateOnGpu(const KvShape& shape, const KvOptions& options,
                                              const KvGpu& gpu = {});
  virtual ~KvCache() = default;

  // From here on the caller works on this stream of the cache's GPU, as if it were KvGpu::stream;
  // the one before is not used again. Does nothing on the CPU.
  virtual void UseStream(void* stream) = 0;

  // Upper bound of the bytes that a sequence of `tokens` tokens takes in each tier.
  virtual kv::TierBytes BytesFor(int64_t tokens) const = 0;

  // Adds an empty sequence; ids are never reused.
  virtual int64_t CreateSequence() = 0;
  // Adds a sequence with the rows of `parent`; they share memory until one of them writes.
  virtual int64_t ForkSequence(int64_t parent) = 0;
  // Frees a sequence's memory. Call between steps.
  virtual void ReleaseSequence(int64_t sequence) = 0;
  // Tokens in a sequence, without those of the current step.
  virtual int64_t Length(int64_t sequence) const = 0;

  // Allocates room for the parts' rows; decode parts come first. Throws, with the cache unchanged,
  // if a budget would be exceeded. A step that was not ended may be begun again, whole or in parts.
  virtual void BeginStep(std::span<const KvPart> parts) = 0;
  // The layer from whose input the queries of `layer` are to be predicted for Prefetch(); -1: the
  // policy does not prefetch this layer (options.prefetch).
  virtual int64_t PredictionSource(int64_t layer) const = 0;
  // Looks up and fetches rows of `layer` with predicted queries of the decode rows, q [decode
  // rows][q_heads * head_dim]. Call it for layers in ascending order, at the start of
  // PredictionSource(layer). Attend(layer) checks the choice with the actual queries.
  virtual void Prefetch(int64_t layer, const float* q, float scale) = 0;
  // Whether KeepInputs() must be called before every Attend() (policy kvpr).
  virtual bool WantsInputs() const = 0;
  // x [rows of the step][hidden] f32: the inputs from which the layer's keys and values are
  // computed. Both arguments are used until Attend(layer) returns.
  virtual void KeepInputs(int64_t layer, const float* x, const KvProjection& projection) = 0;
  // Stores the rows' keys and values and computes out = softmax(scale * q.K) V over the rows that
  // each query attends. Call for all layers in order. All four arrays have elements of one type;
  // attention is computed in f32. Those of bf16 and f16 are converted in memory beside the budgets,
  // 4 bytes for each element of the largest step.
  virtual void Attend(int64_t layer, KvElement element, const void* q, const void* k, const void* v,
                      float scale, void* out) = 0;
  void Attend(int64_t layer, const float* q, const float* k, const float* v, float scale,
              float* out) {
    Attend(layer, KvElement::kF32, q, k, v, scale, out);
  }
  // Commits the step's rows to their sequences.
  virtual void EndStep() = 0;

  virtual kv::Stats GetStats() const = 0;
  // Counters of every (layer, KV head), [layers][kv_heads]; empty for policy full.
  virtual std::span<const kv::HeadCounters> Heads() const = 0;
};

}  // namespace litecache

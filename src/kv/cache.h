// The KV cache as the model sees it. A policy (kv/README.md) implements this interface; `full`
// keeps and attends every row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/matrix_view.h"
#include "device/device.h"
#include "litecache/kv_stats.h"

namespace litecache::kv {

using SequenceId = int64_t;

// Prefixes are cut at multiples of this: the tokens that retriever quest keeps common bounds of,
// which cannot be taken back for some of them.
inline constexpr int64_t kPrefixTokens = 16;
// Tokens that are exported and imported together: whole entries of every retriever's metadata.
inline constexpr int64_t kBlockTokens = 256;

// Shapes of a model's KV.
struct Layout {
  int64_t layers = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::kBF16;  // bf16 or f32
  int64_t hidden = 0;          // values of a layer's input (KeepInputs); 0: not known

  // Bytes of one token's K and V over all layers and heads.
  uint64_t token_bytes() const {
    return static_cast<uint64_t>(2 * layers * kv_heads * head_dim) * SizeOf(dtype);
  }
};

// One sequence's part of a step: `rows` new tokens, which start at row `first_row` of the step's
// activations.
struct StepSequence {
  SequenceId id = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t past = 0;  // tokens already in the cache
  // A generated (or teacher-forced) token, rows = 1: policies may attend to a part of the rows. A
  // prompt's chunk, of one row too, attends to all of them.
  bool decode = false;
  // The prompt's last chunk, as far as the caller knows: decode rows follow. Policies that index a
  // prompt begin with a layer as soon as it has attended this chunk, beside the layers after it; it
  // is a hint, and everything holds without it and where another chunk follows after all.
  bool ends_prompt = false;
};

// The batch of one forward pass: decode rows and prefill chunks together, the decode rows first.
struct Step {
  std::vector<StepSequence> sequences;
  int64_t rows = 0;         // sum over sequences
  int64_t decode_rows = 0;  // rows [0, decode_rows) of the step belong to decode sequences
};

// A layer's keys and values from its inputs, for policies that keep inputs to compute rows again
// (KVPR); who computes the rows implements it.
class KeyValueProjection {
 public:
  virtual ~KeyValueProjection() = default;
  // What k and v may be for Project() beside f32: bf16 where products make them and nothing comes
  // behind, so that rows kept in bf16 need no f32 in between.
  virtual DType rounds_to() const { return DType::kF32; }
  // k, v [n, kv_heads * head_dim] f32 or rounds_to() of the tokens at `positions` [n] whose inputs
  // are x [n, hidden], in the dtype that KeepInputs() brings: what Cache::Attend gets for them, to
  // rounding, keys after their rotary embedding. `stream` may be another than the step's; two of
  // them may be at work at a time. All memory is its device's.
  virtual void Project(Stream& stream, int64_t layer, const MatrixView& x,
                       std::span<const int32_t> positions, const MatrixView& k,
                       const MatrixView& v) = 0;
};

class Cache {
 public:
  virtual ~Cache() = default;

  virtual std::string_view policy() const = 0;
  virtual const Layout& layout() const = 0;

  // Bytes a sequence of `tokens` tokens takes, page rounding included.
  virtual TierBytes BytesFor(int64_t tokens) const = 0;
  // Bytes that a fork made at `shared` tokens adds at most by the time it has `tokens`.
  virtual TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const = 0;

  // Takes memory now for what would take it while it decodes, for sequences that need no more than
  // `bytes` together, those there are included, or as much of it as there is: on a GPU 256 MiB of
  // pinned memory cost 20 ms, several decode steps.
  virtual void AllocateAhead(const TierBytes& bytes) = 0;

  // Registers an empty sequence; ids are never reused.
  virtual SequenceId Create() = 0;
  // A new sequence that shares the rows of `parent` (pages are copied when one of them writes into
  // a shared page).
  virtual SequenceId Fork(SequenceId parent) = 0;
  // Frees a sequence's pages. Legal at any time between steps.
  virtual void Release(SequenceId id) = 0;
  virtual int64_t Length(SequenceId id) const = 0;

  // ---- Prefixes: what a sequence leaves to others with the same beginning. A policy that does not
  // share them says so, and the calls below throw Unsupported. ----
  virtual bool SharesPrefixes() const { return false; }
  // Tokens of a sequence, from its first on, that ForkPrefix and ExportBlock can be asked for.
  virtual int64_t PrefixLength(SequenceId id) const;
  // A new sequence of the parent's first `tokens` tokens, a multiple of kPrefixTokens and at most
  // PrefixLength(parent). It shares the parent's pages, as Fork does, and nothing else: it goes on
  // like a sequence whose prompt's first chunks were these tokens, with a prompt's chunk.
  virtual SequenceId ForkPrefix(SequenceId parent, int64_t tokens);
  // Bytes of the pages these sequences hold, those that several hold counted once.
  virtual TierBytes BytesHeld(std::span<const SequenceId> ids) const;
  // Bytes of ExportBlock.
  virtual uint64_t BlockBytes() const;
  // Copies rows and metadata of tokens [begin, begin + kBlockTokens), of all layers and heads, to
  // `out` and back: begin is a multiple of kBlockTokens, and an import appends to a sequence of
  // `begin` tokens. The bytes mean something to caches of the same CachePlan::Identity() only.
  // ImportBlock throws CapacityError, having changed nothing.
  virtual void ExportBlock(SequenceId id, int64_t begin, std::span<std::byte> out) const;
  virtual void ImportBlock(SequenceId id, std::span<const std::byte> bytes);

  // Makes room for the step's new tokens. Throws CapacityError, having changed nothing, when the
  // budget would be passed. Call before the first layer. A step that fails before EndStep may be
  // begun again, whole or in parts: its rows are written anew and no memory is taken twice.
  virtual void BeginStep(const Step& step) = 0;
  // Steps begun with one key issue the same operations with the same arguments from here to
  // EndStep (Stream::Run); none: this step must be issued.
  virtual std::optional<uint64_t> ReplayKey(const Step& step) const { return std::nullopt; }
  // Whether Prefetch() of this layer wants predicted queries.
  virtual bool WantsPrediction(int64_t layer) const { return false; }
  // How many layers before theirs predictions are made: 1 to kMostAhead.
  static constexpr int64_t kMostAhead = 4;
  virtual int64_t PredictsAhead() const { return 1; }
  // Called at the start of layer - PredictsAhead(), or of layer 0, with that layer's input: q
  // [decode_rows, q_heads * head_dim] f32 = RoPE(Wq_layer norm_layer(x)), the prediction of what
  // Attend(layer) will get (CLO eq. 5), for layers in ascending order. Lookup, retrieval and
  // transfer of `layer` happen here, beside the layers until then. On a GPU q stays as it is until
  // Attend(layer) has been issued.
  virtual void Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                        float scale) {}
  // Whether KeepInputs() has to be called before every Attend().
  virtual bool WantsInputs() const { return false; }
  // x [T, hidden] f32, or on a GPU in the weights' dtype: what the layer's queries, keys and values
  // are products of; used until Attend(layer) returns. projection: used until EndStep(); may be
  // null where no rows are recomputed (a step without decode rows).
  virtual void KeepInputs(Stream& stream, int64_t layer, const Step& step, const MatrixView& x,
                          KeyValueProjection* projection) {}
  // Layer `layer`: stores k, v [T, kv_heads * head_dim] f32 and attends with q [T, q_heads *
  // head_dim] f32 into out [T, q_heads * head_dim] f32; scale multiplies q.k.
  virtual void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                      const MatrixView& k, const MatrixView& v, float scale,
                      const MatrixView& out) = 0;
  // The step's tokens now belong to their sequences. Call after the last layer.
  virtual void EndStep(const Step& step) = 0;

  virtual Stats GetStats() const = 0;
  // [layers][kv_heads]; empty for policies without lookups. Constant address.
  virtual std::span<const HeadCounters> Heads() const { return {}; }
};

// Policy `full`: every row kept in `budget_bytes` of the device's memory and attended.
std::unique_ptr<Cache> CreateFullCache(Device& device, const Layout& layout, uint64_t budget_bytes);

}  // namespace litecache::kv

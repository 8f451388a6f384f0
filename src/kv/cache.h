// The KV cache as the model sees it. A policy (kv/README.md) implements this interface; `full`
// keeps and attends every row.
#pragma once

#include <algorithm>
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
#include "ops/attention/softmax.h"
#include "ops/recurrence/gated_delta.h"
#include "ops/sparse_prefill/sparse_prompts.h"

namespace litecache::kv {

class PagePool;  // kv/pages/page_pool.h

using SequenceId = int64_t;

// Prefixes are cut at multiples of this. Retriever quest keeps bounds over the keys of 16 tokens;
// bounds cannot be undone for some of them.
inline constexpr int64_t kPrefixTokens = 16;
// The prefix of a sequence of `length` tokens that cannot be cut: all of it, or nothing.
constexpr int64_t WholePrefix(int64_t length) { return length % kPrefixTokens == 0 ? length : 0; }
// Tokens of one exported block. A multiple of every retriever's metadata unit.
inline constexpr int64_t kBlockTokens = 256;

// Shapes of a model's KV.
struct Layout {
  int64_t layers = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::kBF16;  // bf16 or f32
  int64_t hidden = 0;          // size of a layer's input vector (for KeepInputs); 0: unknown
  // Sliding windows: layers [layers] that attend the last `window` tokens only, their own included.
  int64_t window = 0;
  std::vector<bool> windowed = {};  // empty: none
  // Of these layers, if they have heads of their own; 0: as the others.
  int64_t window_kv_heads = 0, window_head_dim = 0;
  // Of attention's scores (ops/attention/softmax.h), for what chooses rows by them; 0: none.
  float score_cap = 0;
  // Layers [layers] that keep a state of this shape instead of rows.
  ops::GatedDeltaShape delta = {};
  std::vector<bool> recurrent = {};  // empty: none

  // Layers that attend the whole context.
  int64_t whole_layers() const {
    return layers - std::ranges::count(windowed, true) - std::ranges::count(recurrent, true);
  }
  // Whether all layers do.
  bool uniform() const { return windowed.empty() && recurrent.empty(); }
  // Bytes of a sequence's states.
  uint64_t state_bytes() const {
    return static_cast<uint64_t>(std::ranges::count(recurrent, true) * delta.state_floats()) *
           sizeof(float);
  }

  // Bytes of one token's K and V over all heads of the layers that attend the whole context.
  uint64_t token_bytes() const {
    return static_cast<uint64_t>(2 * whole_layers() * kv_heads * head_dim) * SizeOf(dtype);
  }
};

// One sequence's part of a step: `rows` new tokens, starting at row `first_row` of the step's
// activations.
struct StepSequence {
  SequenceId id = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t past = 0;  // tokens already in the cache
  // One generated (or teacher-forced) token, rows = 1; policies may attend a subset of the rows. A
  // prompt chunk attends all rows, also when it has one row.
  bool decode = false;
  // The prompt's last chunk, as far as the caller can tell: decode rows follow. A hint: policies
  // that index prompts then start on a layer as soon as it has attended this chunk, in parallel
  // with later layers. Results are correct without it, and also if another chunk follows.
  bool ends_prompt = false;
  // Tokens of an answer that Truncate() may take back after the step: a chunk of the last token and
  // drafted ones, or a decode row that only drafts. Decode rows may follow.
  bool drafted = false;
  // Of a decode row that drafts: the rows that the step before selected for its sequence will do. A
  // hint, for policies that select among rows which are all on the device.
  bool keeps_rows = false;
};

// The batch of one forward pass: decode rows and prefill chunks together, the decode rows first.
struct Step {
  std::vector<StepSequence> sequences;
  int64_t rows = 0;         // sum over sequences
  int64_t decode_rows = 0;  // rows [0, decode_rows) of the step belong to decode sequences

  // Whether all decode sequences, of which there are some, keep their rows.
  bool keeps_rows() const {
    const auto keeps = [](const StepSequence& part) { return !part.decode || part.keeps_rows; };
    return decode_rows > 0 && std::ranges::all_of(sequences, keeps);
  }
};

// Computes a layer's keys and values from its input, for policies that keep inputs and recompute
// rows (KVPR). The model implements it.
class KeyValueProjection {
 public:
  virtual ~KeyValueProjection() = default;
  // A dtype that Project() accepts for k and v beside f32: bf16 if nothing follows the matrix
  // products, so that rows kept in bf16 need no f32 intermediate.
  virtual DType rounds_to() const { return DType::kF32; }
  // Computes k, v [n, kv_heads * head_dim], f32 or rounds_to(), of the tokens at `positions` [n]
  // from their inputs x [n, hidden], in the dtype of KeepInputs(): up to rounding the same values
  // as Cache::Attend receives, keys after RoPE. `stream` may differ from the step's stream; up to
  // two such streams run at a time. All pointers are memory of the stream's device.
  virtual void Project(Stream& stream, int64_t layer, const MatrixView& x,
                       std::span<const int32_t> positions, const MatrixView& k,
                       const MatrixView& v) = 0;
};

class Cache {
 public:
  virtual ~Cache() = default;

  virtual std::string_view policy() const = 0;
  virtual const Layout& layout() const = 0;

  // Bytes of a sequence of `tokens` tokens, rounded up to whole pages.
  virtual TierBytes BytesFor(int64_t tokens) const = 0;
  // Upper bound of the bytes that a fork made at `shared` tokens adds by the time it has `tokens`.
  virtual TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const = 0;

  // Allocates ahead what sequences would otherwise allocate while they decode, up to `bytes` in
  // total including existing sequences, or as much as is available: on a GPU 256 MiB of pinned
  // memory cost 20 ms, several decode steps.
  virtual void AllocateAhead(const TierBytes& bytes) = 0;
  // What holds the cache's device memory, for caches that share a budget (kv/mixed); may be null.
  virtual PagePool* device_pages() { return nullptr; }

  // Adds an empty sequence; ids are never reused.
  virtual SequenceId Create() = 0;
  // Returns a new sequence that shares the rows of `parent`; a shared page is copied when one of
  // them writes to it.
  virtual SequenceId Fork(SequenceId parent) = 0;
  // Frees a sequence's pages. Allowed at any time between steps.
  virtual void Release(SequenceId id) = 0;
  virtual int64_t Length(SequenceId id) const = 0;

  // ---- Drafts: a step may hold tokens that turn out not to follow. ----
  // Whether decode rows attend a selection of the rows, where the same rows as a chunk would attend
  // all of them. Decode rows are drafts then, and a chunk verifies them.
  virtual bool SelectsRows() const { return false; }
  // If not, Truncate() throws Unsupported.
  virtual bool CanTruncate() const { return false; }
  // The most tokens that may be taken back, whether one step has stored them or several.
  static constexpr int64_t kMostDrafted = 64;
  // Removes the last Length(id) - `tokens` tokens, at most kMostDrafted, between steps, as if never
  // stored. From states: only those of the last step that said `drafted`, or of several in a row
  // with one row each. Throws InvalidArgument, with nothing changed, if they cannot be removed.
  virtual void Truncate(SequenceId id, int64_t tokens);

  // ---- Prefixes: rows that later sequences with the same beginning can share. If SharesPrefixes()
  // is false, the calls below throw Unsupported. ----
  virtual bool SharesPrefixes() const { return false; }
  // Whether a prefix can be cut off anywhere. If not, what the cache holds for a sequence belongs
  // to its present length: a prefix is all of it, at a multiple of kPrefixTokens, and no blocks can
  // be exported.
  virtual bool CutsPrefixes() const { return SharesPrefixes(); }
  // Number of leading tokens of a sequence that ForkPrefix and ExportBlock accept.
  virtual int64_t PrefixLength(SequenceId id) const;
  // Returns a new sequence with the parent's first `tokens` tokens, a multiple of kPrefixTokens and
  // at most PrefixLength(parent); equal to it unless CutsPrefixes(). It shares the parent's pages,
  // as Fork does, and nothing else: it continues with a prompt chunk, as if these tokens had been
  // its prompt's first chunks.
  virtual SequenceId ForkPrefix(SequenceId parent, int64_t tokens);
  // Bytes of the pages that these sequences hold; shared pages count once.
  virtual TierBytes BytesHeld(std::span<const SequenceId> ids) const;
  // Bytes of a block that ExportBlock writes.
  virtual uint64_t BlockBytes() const;
  // Copy rows and metadata of tokens [begin, begin + kBlockTokens), all layers and heads, to `out`
  // and back. begin is a multiple of kBlockTokens; an import appends to a sequence of `begin`
  // tokens. Blocks can be exchanged only by caches of equal CachePlan::Identity(). ImportBlock
  // throws CapacityError, with the cache unchanged.
  virtual void ExportBlock(SequenceId id, int64_t begin, std::span<std::byte> out) const;
  virtual void ImportBlock(SequenceId id, std::span<const std::byte> bytes);

  // Allocates room for the step's new tokens; call before the first layer. Throws CapacityError,
  // with the cache unchanged, if the budget would be exceeded. A step that fails before EndStep may
  // be begun again, whole or in parts: its rows are overwritten and no memory is taken twice.
  virtual void BeginStep(const Step& step) = 0;
  // Steps with equal keys issue the same operations with the same arguments from here to EndStep
  // (Stream::Run). No value: the step cannot be replayed.
  virtual std::optional<uint64_t> ReplayKey(const Step& step) const { return std::nullopt; }
  // The layer from whose input the queries of `layer` are predicted, for Prefetch(): at most
  // kMostAhead layers earlier. -1: `layer` is not predicted.
  virtual int64_t PredictionSource(int64_t layer) const { return -1; }
  static constexpr int64_t kMostAhead = 4;
  bool WantsPrediction(int64_t layer) const { return PredictionSource(layer) >= 0; }
  // Called at the start of PredictionSource(layer) with that layer's input x, for layers in
  // ascending order. q [decode_rows, q_heads * head_dim] f32 = RoPE(Wq_layer norm_layer(x))
  // predicts the query of Attend(layer) (CLO eq. 5). Lookup, retrieval and transfer of `layer`
  // start here and overlap with the layers in between. On a GPU q must stay unchanged until
  // Attend(layer) has been issued.
  virtual void Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                        float scale) {}
  // Whether KeepInputs() must be called before every Attend().
  virtual bool WantsInputs() const { return false; }
  // x [T, hidden], f32 or on a GPU the weights' dtype: the input from which the layer's queries,
  // keys and values are computed; read until Attend(layer) returns. projection: used until
  // EndStep(); may be null if nothing is recomputed (a step without decode rows).
  virtual void KeepInputs(Stream& stream, int64_t layer, const Step& step, const MatrixView& x,
                          KeyValueProjection* projection) {}
  // Stores k, v [T, kv_heads * head_dim] f32 of layer `layer` and attends with q [T, q_heads *
  // head_dim] f32 into out [T, q_heads * head_dim] f32.
  virtual void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                      const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                      const MatrixView& out) = 0;
  // The place of Attend() in a recurrent layer: updates its state with the step's tokens and writes
  // what they read from it (ops::GatedDelta). convolved [T, channels] f32: scratch, on a GPU only.
  virtual void Recur(Stream& stream, int64_t layer, const Step& step,
                     const ops::GatedDeltaWeights& weights, const ops::GatedDeltaInputs& in,
                     const MatrixView& convolved, const MatrixView& out);
  // Commits the step's tokens to their sequences. Call after the last layer.
  virtual void EndStep(const Step& step) = 0;

  virtual Stats GetStats() const = 0;
  // [layers][kv_heads]; empty for policies without lookups. The address never changes.
  virtual std::span<const HeadCounters> Heads() const { return {}; }
};

// Policy `full`: every row stays in device memory (at most `budget_bytes`) and is attended.
std::unique_ptr<Cache> CreateFullCache(Device& device, const Layout& layout, uint64_t budget_bytes,
                                       const ops::SparsePrefill& sparse = {});

}  // namespace litecache::kv

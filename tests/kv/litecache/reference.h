// QSAC and the attention around it according to the paper's equations, in double precision with
// plain loops: policy litecache must agree with it step by step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "kv/cache.h"
#include "kv/heads/head_plan.h"
#include "kv/litecache/shape.h"
#include "kv/retrieve/retriever.h"
#include "litecache/kv_options.h"
#include "ops/common/row_format.h"

namespace litecache::kv {

// Decisions of the cache under test, for cases that rounding may decide either way.
struct Observed {
  bool hit = false;       // the lookup that chooses the attended rows: the last one of the step
  bool predicted = true;  // the lookup with the predicted query, if the last one has hit
  std::vector<int32_t> cached;  // ascending
};

class Reference {
 public:
  // retriever: finds top-k positions over rows that the reference encodes itself; null: the exact
  // ones, computed here.
  // keeps: drafts leave the cached rows; otherwise the next decode step chooses them anew. In steps
  // that keep their rows, heads that are all resident then attend what they selected in the step
  // before.
  Reference(const Layout& layout, const KvOptions& options, const HeadPlan& plan,
            std::unique_ptr<Retriever> retriever, bool keeps = true);

  void Create(SequenceId id);
  void Fork(SequenceId parent, SequenceId child);
  void Release(SequenceId id) { sequences_.erase(id); }
  void Truncate(SequenceId id, int64_t tokens);

  // Layer `layer` of a chunk of a prompt, or of a draft: q, k, v [rows][heads * head_dim]; out
  // likewise.
  void Prefill(SequenceId id, int64_t layer, int64_t rows, bool drafted, const float* q,
               const float* k, const float* v, float scale, double* out);
  // Layer `layer` of a decode step. predicted_q: the query of the first lookup, null if the layer
  // is not predicted. observed: per KV head of this layer. keeps_rows: StepSequence::keeps_rows.
  // whole: resident heads attend every row.
  void Decode(SequenceId id, int64_t layer, bool keeps_rows, bool whole, const float* predicted_q,
              const float* q, const float* k, const float* v, float scale,
              const std::vector<Observed>& observed, double* out);
  // A step begins, of which this sequence has so many rows; it may be begun again, or abandoned.
  void Begin(SequenceId id, int64_t rows, bool decode);
  // Makes the step's tokens part of the sequence.
  void Commit(SequenceId id, int64_t rows, bool decode);

  int64_t Length(SequenceId id) const { return sequences_.at(id).length; }
  int64_t lookups() const { return lookups_; }
  int64_t hits() const { return hits_; }
  // Checks of lookups with predicted queries, and those that missed.
  int64_t verified() const { return verified_; }
  int64_t corrected() const { return corrected_; }

 private:
  using Vector = std::vector<double>;
  struct Head {
    std::vector<Vector> k, v;                // [token][head_dim], rounded as on the device
    std::vector<Vector> stored_k, stored_v;  // as in the host's rows, if those are codes
    std::vector<std::vector<float>> keys;    // before rounding
    std::vector<std::vector<std::byte>> metadata;
    std::vector<std::vector<float>> encoded_keys;  // from which the metadata was made
    int64_t encoded = 0;
    bool filled = false;          // `cached` is valid
    bool ring_filled = false;     // the recent window's rows are in their slots
    int64_t filled_at = 0;        // tokens before this one came from the store
    Vector label;                 // [group * head_dim]
    std::vector<int32_t> cached;  // ascending
    bool certain = true;          // a resident head's rows, which cannot be seen
    int64_t window_begin = 0;     // first token after the range of the last retrieval
    int64_t cached_end = 0;       // and of all retrievals whose rows may have a slot
  };
  struct Sequence {
    int64_t length = 0;
    int64_t stored = 0;       // tokens in the store
    int64_t slot_tokens = 0;  // the longest context that the slots' pages are for
    std::vector<Head> heads;  // [layers * kv_heads]
  };

  // Before tokens from `tokens` on are taken back, or verified by a drafted chunk.
  void KeepCachedRows(int64_t tokens, Sequence* sequence) const;
  bool AllFit(int64_t n) const {
    return n - options_.recent_tokens - options_.sink_tokens <= options_.budget.RowsFor(n);
  }
  // Whether a head's rows are stored as codes.
  bool Coded(int64_t layer, int64_t head) const {
    return store_format_.quantized() && !plan_.at(layer, head).resident;
  }
  // Appends a token's row.
  void Append(const float* k, const float* v, Head* state) const;
  Vector Round(const float* row) const;
  void Encode(int64_t layer, int64_t head, int64_t end, Head* state, bool given);
  // Top-k of [begin, end) for q, or all of them if there are no more than k. keys: those of the
  // rows that an exact retriever reads. observed: what the cache under test has chosen; null: it
  // cannot be seen. certain: set to whether no other choice is as good, but for rounding.
  std::vector<int32_t> TopK(int64_t layer, int64_t head, const Head& state,
                            const std::vector<Vector>& keys, const Vector& q, float scale,
                            int64_t begin, int64_t end, int64_t k,
                            const std::vector<int32_t>* observed, bool* certain = nullptr);
  double Similarity(int64_t layer, int64_t head, const Vector& q, const Vector& label) const;
  // Looks q up and selects rows if its similarity is not above tau, as QSAC does at a step of n
  // tokens. seen: whether the cache under test hit, for a similarity at the threshold; null:
  // unknown. cached: the rows it chose, or null. Returns whether q hit.
  bool LookUp(int64_t layer, int64_t head, int64_t n, const Vector& q, float scale, double tau,
              const bool* seen, const std::vector<int32_t>* cached, Head* state);
  // stored: number of tokens whose rows are those of the store.
  void Attend(const Head& state, const std::vector<int32_t>& positions,
              const std::function<bool(int32_t)>& stored, const float* q, float scale,
              double* out) const;

  bool keeps_;
  Layout layout_;
  KvOptions options_;
  HeadPlan plan_;
  int64_t group_;
  // Format of the host's rows. If they are codes, cached rows are codes only if the cache under
  // test keeps codes in its slots; rows that never left the device are exact.
  ops::RowFormat store_format_;
  Shape shape_;
  std::unique_ptr<Retriever> retriever_;
  CpuDevice device_{1};
  std::unique_ptr<Stream> stream_;
  std::map<SequenceId, Sequence> sequences_;
  int64_t lookups_ = 0, hits_ = 0, verified_ = 0, corrected_ = 0;
};

}  // namespace litecache::kv

// The KV cache as the model sees it. A policy (kv/README.md) implements this interface; `full`
// keeps and attends every row.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::kv {

using SequenceId = int64_t;

// Shapes of a model's KV.
struct Layout {
  int64_t layers = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::kBF16;  // bf16 or f32

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
};

// The batch of one forward pass: decode rows (rows = 1) and prefill chunks (rows > 1) together.
struct Step {
  std::vector<StepSequence> sequences;
  int64_t rows = 0;  // sum over sequences
};

struct Stats {
  uint64_t bytes_used = 0;      // pages in use
  uint64_t bytes_capacity = 0;  // budget
  uint64_t bytes_read = 0;      // KV bytes attention has read since start
  uint64_t bytes_written = 0;
};

class Cache {
 public:
  virtual ~Cache() = default;

  virtual std::string_view policy() const = 0;
  virtual const Layout& layout() const = 0;

  // Bytes a sequence of `tokens` tokens takes, page rounding included.
  virtual uint64_t BytesFor(int64_t tokens) const = 0;
  // Bytes that a fork made at `shared` tokens adds at most by the time it has `tokens`.
  virtual uint64_t ForkBytesFor(int64_t shared, int64_t tokens) const { return BytesFor(tokens); }

  // Registers an empty sequence; ids are never reused.
  virtual SequenceId Create() = 0;
  // A new sequence that shares the rows of `parent` (pages are copied when one of them writes into
  // a shared page).
  virtual SequenceId Fork(SequenceId parent) = 0;
  // Frees a sequence's pages. Legal at any time between steps.
  virtual void Release(SequenceId id) = 0;
  virtual int64_t Length(SequenceId id) const = 0;

  // Makes room for the step's new tokens. Throws CapacityError, having changed nothing, when the
  // budget would be passed. Call before the first layer. A step that fails before EndStep may be
  // begun again, whole or in parts: its rows are written anew and no memory is taken twice.
  virtual void BeginStep(const Step& step) = 0;
  // Layer `layer`: stores k, v [T, kv_heads * head_dim] f32 and attends with q [T, q_heads *
  // head_dim] f32 into out [T, q_heads * head_dim] f32; scale multiplies q.k.
  virtual void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                      const MatrixView& k, const MatrixView& v, float scale,
                      const MatrixView& out) = 0;
  // The step's tokens now belong to their sequences. Call after the last layer.
  virtual void EndStep(const Step& step) = 0;

  virtual Stats GetStats() const = 0;
};

// Policy `full`: every row kept in `budget_bytes` of the device's memory and attended.
std::unique_ptr<Cache> CreateFullCache(Device& device, const Layout& layout, uint64_t budget_bytes);

}  // namespace litecache::kv

// The next token of every row of logits, chosen on the device with the arithmetic of
// engine/sampler.h: what comes back to the host is 16 bytes a row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops::cuda {

enum class SampleMode : int32_t {
  kGreedy,
  kAll,      // by temperature alone
  kTopK,     // top-k, then top-p and min-p where they are set
  kNucleus,  // top-p, then min-p where it is set
  kMinP,     // min-p alone
};

// Most tokens that top-k, top-p or min-p may leave of a row; one that they leave more says
// kTooMany.
inline constexpr int32_t kMostCandidates = 8192;

// A token whose logit is not the model's alone.
struct LogitChange {
  int32_t token = 0;
  union {
    float bias;         // of the first `biases` of a row: added
    int32_t generated;  // of the others, which penalties look at: times in the answer
  };
};

// How to choose one row's token. The same fields as engine::SamplingParams', checked there.
struct SampleRow {
  double uniform = 0;  // in [0, 1): the draw
  double temperature = 1;
  double top_p = 1;
  double min_p = 0;
  double frequency_penalty = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float inverse_temperature = 1;
  SampleMode mode = SampleMode::kGreedy;
  int32_t logit_row = 0;
  int32_t top_k = 0;  // kTopK: 1 .. min(vocab - 1, kMostCandidates)
  // In `changes`: first `biases` biases, then `seen` tokens of the prompt or the answer; a token at
  // most once in each part.
  int32_t changes_begin = 0;
  int32_t biases = 0;
  int32_t seen = 0;
  int32_t logprob = 0;      // 1: wanted
  int32_t mask_begin = -1;  // first of ceil(vocab / 32) words in `masks`; -1: all tokens may come
};

struct SampledToken {
  enum Status : int32_t {
    kOk,
    kNotFinite,  // a logit is NaN or infinite
    kTooMany,    // more candidates than kMostCandidates: the host has to choose
  };
  int32_t token = 0;  // valid with kOk
  int32_t status = kOk;
  float logprob = 0;   // of the token over the softmax of the model's own logits
  int32_t candidates;  // that were sorted or walked; for diagnosis
};
static_assert(sizeof(SampledToken) == 16);

// Bytes of SampleTokens' scratch for up to `rows` rows: none where thread block clusters hold a row
// in their shared memory (sm_90 and up to 300,000 tokens).
size_t SampleScratchBytes(Stream& stream, int64_t rows, int64_t vocab);

// out[i] of rows[i], i < count; rows, changes, masks and out in device memory. Tokens whose bit in
// a row's mask is not set (bit i % 32 of word i / 32; some are) are left out before all else.
// logits [R, vocab] f32 stay as they are. Two rows may read the same logits. Weights, and their
// sums in float, are the host's bit for bit; sums in double add in another order: the token is
// another one only where the draw comes within 1e-12 of the border between two.
void SampleTokens(Stream& stream, const MatrixView& logits, const SampleRow* rows, int64_t count,
                  const LogitChange* changes, const uint32_t* masks, SampledToken* out,
                  void* scratch);

// Row `row` of logits to `host`, which is pinned, in the stream's order.
void ReceiveLogits(Stream& stream, const MatrixView& logits, int64_t row, int64_t rows,
                   float* host);

}  // namespace litecache::ops::cuda

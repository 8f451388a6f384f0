// Chooses the next token of every row of logits on the device, with the arithmetic of
// engine/sampler.h: only 16 bytes per row are copied to the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/sample/exponential_race.h"

namespace litecache::ops::cuda {

enum class SampleMode : int32_t {
  kGreedy,
  kAll,      // by temperature alone
  kTopK,     // top-k, then top-p and min-p if they are set
  kNucleus,  // top-p, then min-p if it is set
  kMinP,     // min-p alone
};

// Most tokens of a row that top-k, top-p or min-p may leave; with more, the result is kTooMany.
inline constexpr int32_t kMostCandidates = 8192;

// A token whose logit is changed by a bias or penalties.
struct LogitChange {
  int32_t token = 0;
  union {
    float bias;         // added, for the first `biases` entries of a row
    int32_t generated;  // for the other entries, used by penalties: occurrences in the answer
  };
};

// How to choose one row's token. The fields are engine::SamplingParams', already checked.
struct SampleRow {
  RaceDraw draw;
  double temperature = 1;
  double top_p = 1;
  double min_p = 0;
  double frequency_penalty = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float inverse_temperature = 1;
  SampleMode mode = SampleMode::kGreedy;
  int32_t logit_row = 0;
  int32_t top_k = 0;  // for kTopK: 1 to min(vocab - 1, kMostCandidates)
  // In `changes`: first `biases` biases, then `seen` tokens of the prompt or the answer; each part
  // has a token at most once.
  int32_t changes_begin = 0;
  int32_t biases = 0;
  int32_t seen = 0;
  int32_t logprob = 0;  // 1: compute it
  // First of ceil(vocab / 32) words in `masks`; -1: all tokens are allowed.
  int32_t mask_begin = -1;
};

struct SampledToken {
  enum Status : int32_t {
    kOk,
    kNotFinite,  // a logit is NaN or infinite
    kTooMany,    // more candidates than kMostCandidates: the host has to choose
  };
  int32_t token = 0;  // valid if kOk
  int32_t status = kOk;
  float logprob = 0;   // of the token, in the softmax of the model's own logits
  int32_t candidates;  // number of tokens sorted or visited; for diagnosis
};
static_assert(sizeof(SampledToken) == 16);

// Bytes of SampleTokens' scratch for up to `rows` rows: none if thread block clusters hold a row in
// their shared memory (sm_90 and up to 300,000 tokens).
size_t SampleScratchBytes(Stream& stream, int64_t rows, int64_t vocab);

// Computes out[i] for rows[i], i < count; rows, changes, masks and out are device memory. Tokens
// whose bit in a row's mask is not set (bit i % 32 of word i / 32; at least one is set) are
// excluded first. logits [R, vocab] f32 are unchanged. Two rows may read the same logits. Random
// numbers, weights, and their sums in float, equal the host's bit for bit; logarithms may differ in
// their last bit: the token differs only if two arrive within 1e-15 of their time of each other.
void SampleTokens(Stream& stream, const MatrixView& logits, const SampleRow* rows, int64_t count,
                  const LogitChange* changes, const uint32_t* masks, SampledToken* out,
                  void* scratch);

// Copies row `row` of logits to `host`, pinned memory, in the stream's order.
void ReceiveLogits(Stream& stream, const MatrixView& logits, int64_t row, int64_t rows,
                   float* host);

}  // namespace litecache::ops::cuda

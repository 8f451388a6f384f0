// InfiniGen's speculation on the device: which channels of the skewed queries and keys matter, the
// partial keys in them, and which rows a guessed query asks for
// (lab/policies/infinigen/speculation.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/attention/listed_cuda.h"
#include "ops/rows/rows_cuda.h"
#include "ops/select/projection_select.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::ops::cuda {

// The tables of a step's sequences that are used here. kChannels: block 0 of its one list is the
// sequence's channels, int32 [speculated layers][kv_heads][rank], ascending.
inline constexpr TableId kPartialKeys = kMetadata, kChannels = kLabels;

// One speculated layer.
struct PartialLayer {
  ProjectionFormat format;      // of the partial keys
  RowTable keys;                // lists and list_of_head; page_rows: tokens a page covers
  const float* skew = nullptr;  // device, f32 [kv_heads][head_dim][width]
  int32_t width = 0;            // head_dim, padded
  int32_t index = 0;            // among the speculated layers
  int32_t kv_heads = 0, group = 0, head_dim = 0;
};

// after [kv_heads][width] = before + the sums over the rows of q [rows, q_heads * head_dim] and k
// [rows, kv_heads * head_dim] of |row . column of the head's skew|: a head's group of queries and
// its key. Products in f32, sums in double, in an order that depends on the number of rows only.
size_t ChannelSumsScratchBytes(int64_t kv_heads, int64_t width);
void AddChannelSums(Stream& stream, const PartialLayer& layer, const MatrixView& q,
                    const MatrixView& k, const double* before, double* after, void* scratch);

// chosen [lists][rank]: the channels with the largest of sums [lists][width], ascending; equal
// ones: the lower.
void ChooseChannels(Stream& stream, const double* sums, int64_t lists, int64_t head_dim,
                    int64_t width, int64_t rank, int32_t* chosen);

// Partial keys of the tokens that `range` says, from the rows of `source` (bf16 or f32).
void EncodePartialKeys(Stream& stream, const StepView& step, const PartialLayer& layer,
                       const RowTable& source, const RowRange& range);

// What a layer's speculation works in. Pairs are sequence * kv_heads + head.
struct Speculation {
  float* components = nullptr;    // [pairs][group][2 * format.pairs()]
  SelectRange* ranges = nullptr;  // [capacity]
  int32_t* above = nullptr;       // [pairs]
  int32_t* attended = nullptr;    // [pairs]: rows selected, and the new one
};

// Components of the queries q [rows, q_heads * head_dim] f32 in their sequences' channels; ranges
// := [0, past), above := 0.
void ProjectQueries(Stream& stream, const StepView& step, const PartialLayer& layer,
                    const MatrixView& q, const Speculation& work);

// keys [pairs][stride] := the margins (lab/policies/infinigen/ops/margin_select.h) of all
// candidates; then k of every range: the mean over its heads of how many are above -alpha, at least
// 1 and at most int(cap
// * past). counters [kv_heads]: lookups, rows_selected, rows_moved.
void MarginScore(Stream& stream, const StepView& step, const PartialLayer& layer, float scale,
                 float alpha, double cap, const Speculation& work, uint32_t* keys, int64_t stride,
                 DeviceHeadCounters* counters);

}  // namespace litecache::ops::cuda

// InfiniGen's speculation on the device: chooses channels of the skewed queries and keys, keeps the
// partial keys in them, and selects rows with a predicted query
// (lab/policies/infinigen/speculation.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "lab/namespaces.h"
#include "ops/attention/listed_cuda.h"
#include "ops/rows/rows_cuda.h"
#include "ops/select/projection_select.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::lab::ops::cuda {

// The tables of a step's sequences used here. kChannels: block 0 of its single list has the
// sequence's channels, int32 [speculated layers][kv_heads][rank], ascending.
inline constexpr TableId kPartialKeys = kMetadata, kChannels = kLabels;

// One speculated layer.
struct PartialLayer {
  ProjectionFormat format;      // of the partial keys
  RowTable keys;                // lists and list_of_head; page_rows: tokens per page
  const float* skew = nullptr;  // device, f32 [kv_heads][head_dim][width]
  int32_t width = 0;            // head_dim, padded
  int32_t index = 0;            // among the speculated layers
  int32_t kv_heads = 0, group = 0, head_dim = 0;
};

// after [kv_heads][width] = before + the sums over the rows of q [rows, q_heads * head_dim] and k
// [rows, kv_heads * head_dim] of |row . column of the head's skew|, for a head's group of queries
// and its key. Products in f32, sums in double, in an order that depends only on the number of
// rows.
size_t ChannelSumsScratchBytes(int64_t kv_heads, int64_t width);
void AddChannelSums(Stream& stream, const PartialLayer& layer, const MatrixView& q,
                    const MatrixView& k, const double* before, double* after, void* scratch);

// chosen [lists][rank]: the channels with the largest of sums [lists][width], ascending; ties go to
// the lower channel.
void ChooseChannels(Stream& stream, const double* sums, int64_t lists, int64_t head_dim,
                    int64_t width, int64_t rank, int32_t* chosen);

// Encodes the partial keys of the tokens in `range` from the rows of `source` (bf16 or f32).
void EncodePartialKeys(Stream& stream, const StepView& step, const PartialLayer& layer,
                       const RowTable& source, const RowRange& range);

// Work memory of a layer's speculation. Pairs are sequence * kv_heads + head.
struct Speculation {
  float* components = nullptr;    // [pairs][group][2 * format.pairs()]
  SelectRange* ranges = nullptr;  // [capacity]
  int32_t* above = nullptr;       // [pairs]
  int32_t* attended = nullptr;    // [pairs]: rows selected plus the new one
};

// Projects the queries q [rows, q_heads * head_dim] f32 onto their sequences' channels; sets ranges
// to [0, past) and above to 0.
void ProjectQueries(Stream& stream, const StepView& step, const PartialLayer& layer,
                    const MatrixView& q, const Speculation& work);

// keys [pairs][stride] := the margins (lab/policies/infinigen/ops/margin_select.h) of all
// candidates; then k of every range: the mean over its heads of the number above -alpha, at least 1
// and at most int(cap * past). counters [kv_heads]: lookups, rows_selected, rows_moved.
void MarginScore(Stream& stream, const StepView& step, const PartialLayer& layer, float scale,
                 float alpha, double cap, const Speculation& work, uint32_t* keys, int64_t stride,
                 DeviceHeadCounters* counters);

}  // namespace litecache::lab::ops::cuda

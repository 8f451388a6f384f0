// Feed-forward blocks of experts (mixtures of experts): a router sends every row to a few experts.
#pragma once

#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/common/gate_function.h"

namespace litecache::ops {

// The most experts of a layer, and the most of them for a row.
inline constexpr int64_t kMostExperts = 1024, kMostActiveExperts = 64;

// Where the experts of a layer are divided among ranks (model/shard.h), those of one: `count` from
// `first` on. count 0: all are here.
struct ExpertRange {
  int64_t first = 0, count = 0;
};

// Which experts rows are sent to; memory of the stream's device.
struct Routing {
  static constexpr int32_t kElsewhere = -1;

  // [rows, active], by descending weight. Where only a range of the experts is here, they are
  // counted from its first, and behind those of a row kElsewhere, of weight 0, stands for each of
  // the others.
  int32_t* experts = nullptr;
  float* weights = nullptr;  // [rows, active]
  int64_t rows = 0;
  int64_t active = 0;  // 1 to kMostActiveExperts, and at most the number of experts

  Routing Rows(int64_t begin, int64_t count) const {
    return {experts + begin * active, weights + begin * active, count, active};
  }
};

// How a row's logits become its experts and their weights.
struct Router {
  bool sigmoid = false;     // an expert's score is the sigmoid of its logit, instead of the softmax
  bool normalized = false;  // the weights of a row are divided by their sum
  float scale = 1;          // of the weights, after that
  // [experts], memory of the stream's device that no operation writes: added to scores to choose
  // experts, not to weights. Null: nothing is.
  const float* correction = nullptr;
  // [experts], likewise: an expert's weight is times its element, at last. Null: it is not.
  const float* scales = nullptr;
};

// For every row the `active` experts of the largest scores (of sums with the correction), and their
// scores as weights; of equal ones, the expert of the lower index. logits [rows, experts] f32.
// share [rows, 1] f32, if not empty: the last of a row's experts is the one behind those of the
// logits, with the weight sigmoid(share). own: the experts that are here; with a share, all.
void Route(Stream& stream, const MatrixView& logits, const Router& router, const Routing& routing,
           const MatrixView& share = {}, const ExpertRange& own = {});

// One matrix of every expert of a layer.
struct ExpertMatrices {
  MatrixView type;  // of each, without data; of packed blocks on a GPU
  int64_t count = 0;
  // [count], in the memory of the stream's device: where each expert's matrix is, 16-byte aligned
  // on a GPU.
  const void* const* data = nullptr;
  // [count, rows] f32, memory of the stream's device: added to each expert's products; null: none.
  const float* bias = nullptr;
};

struct ExpertSlots;  // expert_slots_cuda.h

struct ExpertLayer {
  ExpertMatrices gate, up;  // [intermediate, hidden]
  ExpertMatrices down;      // [hidden, intermediate]
  // Further experts that rows may be sent to, which are not here.
  int64_t elsewhere = 0;
  // On a GPU, if the matrices are in host memory: where copies of some of them are, of which the
  // operation keeps those used last. Null: all are in the GPU's memory.
  const ExpertSlots* slots = nullptr;

  int64_t all() const { return gate.count + elsewhere; }
};

// gate, up and down are parts 0, 1 and 2.
inline constexpr int kExpertParts = 3;
inline ExpertMatrices& PartOf(ExpertLayer& layer, int part) {
  return part == 0 ? layer.gate : part == 1 ? layer.up : layer.down;
}

// Bytes of scratch that Experts() uses for `rows` rows.
uint64_t ExpertScratchBytes(DeviceType device, const ExpertLayer& layer, int64_t rows,
                            int64_t active);

// y += sum over a row's experts e of weight(e) * down_e(function(gate_e x, up_e x)), in an order
// that is always the same; products include their matrices' biases. Experts that are elsewhere are
// left out.
//
// x [T, hidden] in the products' dtype (f32 on the CPU; on a GPU the weights', bf16 for blocks); y
// [T, hidden] f32, not overlapping x. Products are those of ops/linear/linear.h; on a GPU with bf16
// weights what enters down, and with more rows than few what leaves it, is rounded to bf16.
// scratch: ExpertScratchBytes(), 256-byte aligned. On a GPU nothing depends on the routing but the
// kernels' work: the operation can be recorded.
void Experts(Stream& stream, const MatrixView& x, const Routing& routing, const ExpertLayer& layer,
             const GateFunction& function, void* scratch, const MatrixView& y);

}  // namespace litecache::ops

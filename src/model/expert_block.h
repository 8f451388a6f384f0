// The feed-forward block of a layer with experts: its weights, and its operations.
#pragma once

#include <cstdint>
#include <string>

#include "model/arena.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/experts/experts.h"

namespace litecache::model {

// The expert that all rows of a layer use.
struct SharedExpert {
  // [1, hidden]: a row's share of it is the sigmoid of their product; empty: all is.
  MatrixView share;
  MatrixView gate, up, down;
};

// What experts have that stand beside an ordinary block: norms [hidden].
struct BesideNorms {
  const float* router = nullptr;  // of the router's input
  const float* input = nullptr;
  const float* output = nullptr;
  const float* ordinary = nullptr;  // of the ordinary block's output
};

struct ExpertBlock {
  MatrixView router;                   // [experts, hidden]
  const float* router_bias = nullptr;  // [experts]
  const float* correction = nullptr;   // [experts]
  const float* scales = nullptr;       // [experts], of their weights
  BesideNorms beside;                  // where config.beside
  ops::ExpertLayer experts;
  // Where config.shared is not 0. joined: its three matrices are the last of `experts`, which saves
  // a step on a GPU three kernels; their shapes and types allow it.
  SharedExpert shared;
  bool joined = false;

  // Of `experts`, those that a row uses.
  int64_t Active(const ExpertConfig& config) const { return config.active + (joined ? 1 : 0); }
};

// name: the layer's, with its last dot.
ExpertBlock TakeExperts(WeightStore& weights, const ExpertConfig& config, int64_t hidden,
                        int64_t layer, const std::string& name);

// What a step's rows need in such a block.
struct ExpertActivations {
  MatrixView logits;   // [T, experts] f32, of the router
  MatrixView experts;  // [T, ExpertBlock::Active()] of 32 bits
  MatrixView weights;  // the same in f32
  MatrixView scratch;  // [1, floats] f32
  // Of the shared expert.
  MatrixView share;                   // [T, 1] f32
  MatrixView shared_gate, shared_up;  // [T, shared] in the products' dtype
  MatrixView beside;                  // [T, hidden] f32, of experts beside an ordinary block

  ExpertActivations Rows(int64_t begin, int64_t count) const;
};
// scratch_bytes: the most of the model's layers, for `rows` rows (ops/experts/experts.h).
ExpertActivations PlaceExperts(Arena& arena, const ExpertConfig& config, int64_t hidden,
                               DType product, int64_t rows, uint64_t scratch_bytes);

// x += the experts' outputs. h [T, hidden]: the block's input in the products' dtype.
void RunExperts(Stream& stream, const ExpertConfig& config, const ExpertBlock& block,
                const MatrixView& h, const ops::GateFunction& function, const ExpertActivations& a,
                const MatrixView& x);

// The same of experts beside an ordinary block. x: the block's input; y [T, hidden]: the ordinary
// block's output, which becomes the sum of both, each after its norm. h: as x in the products'
// dtype, overwritten.
void RunExpertsBeside(Stream& stream, const ExpertConfig& config, const ExpertBlock& block,
                      const MatrixView& x, float epsilon, const ops::GateFunction& function,
                      const ExpertActivations& a, const MatrixView& h, const MatrixView& y);

}  // namespace litecache::model

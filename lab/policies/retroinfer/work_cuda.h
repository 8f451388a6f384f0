// Work memory for the kernels of a policy retroinfer decode step, besides that of its sequences.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "device/cuda/cuda_device.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/wave_index_cuda.h"
#include "lab/policies/retroinfer/shape.h"
#include "lab/policies/retroinfer/wave_sequence.h"

namespace litecache::lab {

class RetroWork {
 public:
  // host: pinned memory. Both must outlive this.
  RetroWork(CudaDevice& gpu, Device& host, const RetroShape& shape);

  // Device memory for up to `sequences` sequences of up to `tokens` tokens.
  static uint64_t Bytes(const RetroShape& shape, int64_t sequences, int64_t tokens);

  // Allocates for a step's decoding sequences. Kernels are given the addresses: a step recorded
  // with another serial() cannot be replayed.
  void Reserve(std::span<const WaveSequence* const> decoding);
  uint64_t serial() const { return serial_; }

  const ops::cuda::WaveShape& sizes() const { return sizes_; }
  // The work arrays and messages; consecutive layers have separate ones.
  ops::cuda::WaveLayer Layer(int64_t layer) const;
  float* log_sums() const { return arrays_.log_sums; }  // [sequences][q_heads]
  const int32_t* ones() const { return arrays_.ones; }  // [pairs]
  void* scratch() const { return scratch_.data(); }     // of selection and attention
  static constexpr int64_t kLayersTold = 2;

 private:
  struct Room {
    int64_t pairs = 0, clusters = 0, ranked = 0, chosen = 0, rows = 0, blocks = 0;
    bool Holds(const Room& other) const;
  };
  struct Arrays {
    ops::cuda::WaveLayer layer;
    int32_t* ones = nullptr;
    float* log_sums = nullptr;
  };
  static void Widen(const RetroShape& shape, int64_t clusters, int64_t nprobe, int64_t estimated,
                    Room* room);
  static ops::cuda::WaveShape SizesOf(const RetroShape& shape, const Room& room);
  // Places the arrays in `memory`; returns their size. Null: only computes the size.
  static size_t Place(const RetroShape& shape, const Room& room, std::byte* memory, Arrays* arrays);
  class Pieces;
  static void PlaceAnswers(const Room& room, Pieces& pieces, ops::cuda::WaveAdmissions* to);
  static size_t ScratchBytes(const RetroShape& shape, const Room& room);

  CudaDevice& gpu_;
  Device& host_;
  const RetroShape& shape_;
  Room room_;
  ops::cuda::WaveShape sizes_;
  Arrays arrays_;
  uint64_t serial_ = 0;
  Buffer memory_, scratch_;
  std::array<Buffer, kLayersTold> told_, answers_;  // pinned
  std::array<ops::cuda::WaveAdmissions, kLayersTold> admissions_;
};

}  // namespace litecache::lab

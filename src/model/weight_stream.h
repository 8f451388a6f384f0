// Matrices of layers that stay in host memory: a step's layers come to the device one after
// another, on a stream of their own, while others compute.
#pragma once

#include <cstdint>
#include <memory>

#include "base/matrix_view.h"
#include "device/device.h"
#include "model/weight_placement.h"

namespace litecache::model {

class WeightStream {
 public:
  virtual ~WeightStream() = default;

  virtual bool Offloads(int64_t layer) const = 0;

  // ---- While weights are loaded ----
  struct Matrix {
    void* host = nullptr;  // pinned memory, to be filled
    MatrixView view;  // where it will be on the device; the address is that of other layers too
  };
  // A matrix of a layer that is offloaded. All of them have the same matrices in the same order.
  virtual Matrix Add(const LayerPlace& place, DType dtype, int64_t rows, int64_t cols) = 0;

  // ---- In a step, in the order of the layers ----
  // Before a step and after it: the first layers come, the next step's while this one ends. Also
  // after a step that was left half way.
  virtual void Settle(Stream& main) = 0;
  // What `stream` is given from here on finds the part, and those that come before it, in place.
  // Parts kKeyValue and kQuery may be asked for up to WeightPlacement::LayersAhead() layers ahead.
  // Nothing for a layer that stays.
  virtual void Await(Stream& stream, int64_t layer, LayerPart part) = 0;
  // `main` has been given all that reads the part, and waits for what other streams do with it:
  // another layer may take its place. kQuery: all projections.
  virtual void Release(Stream& main, int64_t layer, LayerPart part) = 0;

  virtual uint64_t host_bytes() const = 0;    // of matrices in host memory
  virtual uint64_t device_bytes() const = 0;  // of their places on the device
  virtual uint64_t moved_bytes() const = 0;   // that have been sent to the device so far
};

// device: a CudaDevice.
std::unique_ptr<WeightStream> CreateCudaWeightStream(Device& device,
                                                     const WeightPlacement& placement);

}  // namespace litecache::model

// Matrices of layers that stay in host memory: they are copied to the device layer by layer in
// every step, on a separate stream, while other layers compute.
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
    MatrixView view;       // its place on the device, at an address that other layers share
  };
  // Adds a matrix of an offloaded layer: `bytes` bytes of this type (a view without data), at most
  // those that were estimated for its place.
  virtual Matrix Add(const LayerPlace& place, const MatrixView& type, size_t bytes) = 0;

  // ---- In a step, in the order of the layers ---- Call before and after a step: starts copying
  // the first layers, so that the next step's are copied while this one ends. Must also be called
  // after a step that was abandoned.
  virtual void Settle(Stream& main) = 0;
  // Work enqueued on `stream` from here on sees the part, and the parts before it, in place. Parts
  // kKeyValue and kQuery may be awaited up to WeightPlacement::LayersAhead() layers ahead. Does
  // nothing for a layer that stays on the device.
  virtual void Await(Stream& stream, int64_t layer, LayerPart part) = 0;
  // Call when all readers of the part have been enqueued on `main` or are waited for by it: another
  // layer may then use the part's place. kQuery stands for all projections.
  virtual void Release(Stream& main, int64_t layer, LayerPart part) = 0;

  virtual uint64_t host_bytes() const = 0;    // of matrices in host memory
  virtual uint64_t device_bytes() const = 0;  // of the places on the device
  virtual uint64_t moved_bytes() const = 0;   // sent to the device so far
};

// device: a CudaDevice. bytes: EstimatePlaces() of the model and the placement.
std::unique_ptr<WeightStream> CreateCudaWeightStream(Device& device,
                                                     const WeightPlacement& placement,
                                                     const PlaceBytes& bytes);

}  // namespace litecache::model

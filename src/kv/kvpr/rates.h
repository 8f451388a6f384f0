// KVPR's profiler: the link's and the products' speed, measured.
#pragma once

#include "device/device.h"
#include "kv/offload/shape.h"

namespace litecache::kv::kvpr {

struct Rates {
  double link_bytes_per_second = 0;  // of rows as the store keeps them
  double flops_per_second = 0;       // of the products that make a layer's keys and values
  // On a GPU, as a step's layers have it. Seconds of one layer: of a token
  // that is recomputed, inputs gathered and rows written beside the products; of a token that a
  // sequence attends; of the products of a step of few rows, taken to have 12 hidden^2 weights.
  double recompute = 0, attention = 0, products = 0;
};

// A few transfers of rows as the transfer thread (on a GPU the copy engine) makes them, and a few
// products of as many inputs as are recomputed together; on a GPU also what the cache and the model
// do for a layer. Takes tens of milliseconds, there a little longer.
Rates MeasureRates(Device& device, const offload::Shape& shape);

}  // namespace litecache::kv::kvpr

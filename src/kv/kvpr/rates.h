// KVPR's profiler: measures the speed of the link and of matrix products.
#pragma once

#include "device/device.h"
#include "kv/offload/shape.h"

namespace litecache::kv::kvpr {

struct Rates {
  double link_bytes_per_second = 0;  // of rows in the store's format
  double flops_per_second = 0;       // of the products that compute a layer's keys and values
  // GPU only, under the load of a step; seconds of one layer. recompute: per recomputed token,
  // including gathering inputs and writing rows. attention: per token that a sequence attends.
  // products: per step of few rows, assuming 12 hidden^2 weights.
  double recompute = 0, attention = 0, products = 0;
};

// Times transfers of rows as the transfer thread (on a GPU the copy engine) makes them, products of
// as many inputs as are recomputed together, and on a GPU also a layer's work of cache and model.
// Takes tens of milliseconds, on a GPU a little longer.
Rates MeasureRates(Device& device, const offload::Shape& shape);

}  // namespace litecache::kv::kvpr

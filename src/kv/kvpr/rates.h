// KVPR's profiler: the link's and the products' speed, measured.
#pragma once

#include "device/device.h"
#include "kv/offload/shape.h"

namespace litecache::kv::kvpr {

struct Rates {
  double link_bytes_per_second = 0;  // of rows as the store keeps them
  double flops_per_second = 0;       // of the products that make a layer's keys and values
};

// A few transfers of rows as the transfer thread (on a GPU the copy engine) makes them, and a few
// products of as many inputs as are recomputed together. Takes tens of milliseconds.
Rates MeasureRates(Device& device, const offload::Shape& shape);

}  // namespace litecache::kv::kvpr

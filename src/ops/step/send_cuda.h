// Copies a mirror's bytes to the device by a kernel.
#pragma once

#include <cstddef>

#include "device/device.h"

namespace litecache::ops::cuda {

// As mirror.Send(), for a few KiB while the copy engine is busy: a copy would wait there for
// milliseconds of copies that other streams enqueued before; a kernel's reads of host memory do
// not. bytes: a multiple of 4.
void SendByKernel(Stream& stream, const Mirror& mirror, size_t bytes);

}  // namespace litecache::ops::cuda

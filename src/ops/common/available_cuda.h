// Whether this program has CUDA operations: dispatch files guard their calls with `if constexpr`,
// so that a program built without CUDA does not refer to them.
#pragma once

#include "device/device.h"

namespace litecache::ops::cuda {

#ifdef LITECACHE_CUDA
inline constexpr bool kAvailable = true;
#else
inline constexpr bool kAvailable = false;
#endif

// Whether an operation on this stream runs on a GPU. Without CUDA there are no such streams.
constexpr bool RunsHere(const Stream& stream) { return stream.device_type() == DeviceType::kCuda; }

}  // namespace litecache::ops::cuda

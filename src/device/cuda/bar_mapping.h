// Device memory that the CPU writes through the GPU's PCIe aperture (BAR1), using GDRCopy. Its
// library and kernel driver are optional and found at run time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "device/cuda/cuda_device.h"

namespace litecache {

// The mapping is write-combining: the CPU must not read it, and whole cache lines written by
// streaming stores are fastest.
class BarMapping {
 public:
  virtual ~BarMapping() = default;
  virtual std::byte* host() const = 0;    // the CPU's address
  virtual std::byte* device() const = 0;  // the GPU's address of the same bytes
};

// Returns `bytes` bytes of zeroed memory of this GPU, mapped. Null, with an explanation in *reason,
// if there is no GDRCopy or it refuses.
std::unique_ptr<BarMapping> CreateBarMapping(CudaDevice& device, size_t bytes, std::string* reason);

}  // namespace litecache

// Device memory that the CPU writes through the GPU's PCIe aperture (BAR1), by way of GDRCopy: its
// library and kernel driver are found at run time, and nothing depends on them.
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

// `bytes` of zeroed memory of this GPU, mapped. Null where there is no GDRCopy or it refuses, with
// the reason in `why_none`.
std::unique_ptr<BarMapping> CreateBarMapping(CudaDevice& device, size_t bytes,
                                             std::string* why_none);

}  // namespace litecache

// The communicator of ranks with GPUs.
#pragma once

#include <memory>

#include "device/device.h"
#include "parallel/communicator.h"
#include "parallel/process_group.h"

namespace litecache::parallel {

// Throws DeviceError if NCCL cannot be loaded or started.
std::shared_ptr<Communicator> CreateNcclCommunicator(Device& device,
                                                     std::shared_ptr<ProcessGroup> group);

}  // namespace litecache::parallel

#include "parallel/communicator.h"
#include "parallel/nccl_cuda.h"
#include "parallel/process_group.h"

namespace litecache::parallel {

std::shared_ptr<Communicator> Connect([[maybe_unused]] Device& device,
                                      std::shared_ptr<ProcessGroup> group) {
#ifdef LITECACHE_CUDA
  if (device.type() == DeviceType::kCuda) return CreateNcclCommunicator(device, std::move(group));
#endif
  return group;
}

}  // namespace litecache::parallel

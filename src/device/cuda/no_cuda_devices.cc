// Stands in where the program is built without CUDA.
#include "device/cuda/cuda_devices.h"

namespace litecache {

CudaDevices FindCudaDevices() { return {{}, "this program was built without CUDA"}; }

}  // namespace litecache

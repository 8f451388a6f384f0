// A libcuda.so.1 like that of machines whose driver is too old or does not start. FAKE_CUDA_DRIVER:
// the version it reports (12080 is CUDA 12.8); FAKE_CUDA_INIT: the result of cuInit. All other
// functions of a driver are missing.
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace {

int Number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

int NotInitialized() { return 3; }  // CUDA_ERROR_NOT_INITIALIZED

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = Number("FAKE_CUDA_DRIVER", 99000);
  return 0;
}

int cuInit(unsigned) { return Number("FAKE_CUDA_INIT", 0); }

int cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* status) {
  const std::string_view wanted(name);
  *function = reinterpret_cast<void*>(&NotInitialized);
  if (wanted == "cuDriverGetVersion") *function = reinterpret_cast<void*>(&cuDriverGetVersion);
  if (wanted == "cuInit") *function = reinterpret_cast<void*>(&cuInit);
  if (wanted == "cuGetProcAddress") *function = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  if (status != nullptr) *status = 0;
  return 0;
}

}  // extern "C"

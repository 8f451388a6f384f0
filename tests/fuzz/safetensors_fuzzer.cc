// Arbitrary bytes as a safetensors file: an error, or tensors inside the bounds of the file.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    for (const auto& [name, tensor] : litecache::io::ParseSafetensors(bytes, size, "fuzz")) {
      LC_CHECK(tensor.begin <= tensor.end && tensor.end <= size, "{} {}", name, tensor.ToString());
      for (const int64_t extent : tensor.shape) LC_CHECK(extent >= 0);
    }
  } catch (const litecache::FileError&) {
  }
  return 0;
}

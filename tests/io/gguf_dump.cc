// Writes all values of a GGUF file's tensors, as f32 and in the order of their names; for
// gguf_reference.py.
#include <cstdio>
#include <vector>

#include "base/block_format.h"
#include "base/error.h"
#include "io/gguf.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const litecache::io::Gguf file(argv[1]);
    for (const auto& [name, info] : file.tensors()) {
      const litecache::BlockFormat* format = litecache::FindBlockFormat(info.dtype);
      LC_CHECK(format != nullptr && format->to_float != nullptr, "{}", info.dtype);
      const auto blocks = static_cast<int64_t>(info.bytes()) / format->bytes;
      std::vector<float> values(static_cast<size_t>(blocks * format->values));
      format->to_float(file.Data(info), blocks, values.data());
      std::fwrite(values.data(), sizeof(float), values.size(), stdout);
    }
  } catch (const litecache::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

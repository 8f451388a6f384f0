#include "cli/version.h"

#include <fmt/format.h>

#include "device/cpu/cpu_device.h"

namespace litecache::cli {

std::string VersionText() {
  return fmt::format("litecache {}\ncompiler: {}\nbackends: {}\ndevice: {}\n", LC_VERSION,
#if defined(__clang__)
                     "clang " __clang_version__,
#else
                     "gcc " __VERSION__,
#endif
                     LC_BACKENDS, CpuDevice().Info().name);
}

}  // namespace litecache::cli

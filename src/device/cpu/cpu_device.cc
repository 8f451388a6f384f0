#include "device/cpu/cpu_device.h"

#include <sys/mman.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/units.h"
#include "device/cpu/cpu_isa.h"
#include "device/cpu/memory_limits.h"

namespace litecache {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLine = 64;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void FreeSmall(void* data, size_t) { std::free(data); }
void FreeMapped(void* data, size_t bytes) { munmap(data, RoundUp(bytes, kHugePage)); }

// Maps one huge page more than asked and gives the unaligned ends back.
void* MapHuge(size_t bytes) {
  const size_t size = RoundUp(bytes, kHugePage);
  void* raw = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(raw) % kHugePage) % kHugePage;
  std::byte* data = begin + head;
  if (head > 0) munmap(begin, head);
  if (head < kHugePage) munmap(data + size, kHugePage - head);
  // Advice only: without huge pages everything works, a few percent slower.
  madvise(data, size, MADV_HUGEPAGE);
  return data;
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

[[noreturn]] void ThrowOutOfMemory(size_t bytes, const MemoryLimits& limits) {
  throw CapacityError(
      "cannot allocate {} of host memory: {} of {} are free; use a smaller model, batch or context",
      FormatBytes(bytes), FormatBytes(limits.free), FormatBytes(limits.total));
}

}  // namespace

CpuStream& AsCpu(Stream& stream) {
  LC_CHECK(stream.device_type() == DeviceType::kCpu, "not a CPU stream");
  return static_cast<CpuStream&>(stream);
}

CpuDevice::CpuDevice(int threads) : pool_(threads) {}

DeviceInfo CpuDevice::Info() const {
  static const std::string model = CpuModel();
  const MemoryLimits limits = ReadMemoryLimits();
  return {.name = fmt::format("{}, {} thread{}, {}", model, pool_.size(),
                              pool_.size() == 1 ? "" : "s", Name(ActiveCpuIsa())),
          .total_memory = limits.total,
          .free_memory = limits.free,
          .parallelism = pool_.size()};
}

Buffer CpuDevice::Allocate(size_t bytes) {
  if (bytes == 0) return {};
  if (bytes < kHugePage) {
    void* data = std::aligned_alloc(kLine, RoundUp(bytes, kLine));
    if (data == nullptr) ThrowOutOfMemory(bytes, ReadMemoryLimits());
    return Buffer(data, bytes, FreeSmall);
  }
  // Linux promises more memory than it has and kills the process later, so free memory is checked
  // first. If /proc is not readable (total 0), only the mapping itself can fail.
  const MemoryLimits limits = ReadMemoryLimits();
  if (limits.total > 0 && bytes > limits.free) ThrowOutOfMemory(bytes, limits);
  void* data = MapHuge(bytes);
  if (data == nullptr) ThrowOutOfMemory(bytes, limits);
  return Buffer(data, bytes, FreeMapped);
}

std::unique_ptr<Stream> CpuDevice::CreateStream() { return std::make_unique<CpuStream>(pool_); }

}  // namespace litecache

#include "device/cpu/cpu_isa.h"

#include <hwy/targets.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace litecache {
namespace {

constexpr std::array kLevels = {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512,
                                CpuIsa::kAvx512Bf16};

struct Leaf7 {
  bool avx512_bf16 = false;
  bool amx_bf16 = false;
};

Leaf7 ReadLeaf7() {
  Leaf7 result;
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
    result.amx_bf16 = (edx & kAmxBf16) && (edx & kAmxTile);
    if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
      result.avx512_bf16 = (eax & (1u << 5)) != 0;
    }
  }
#endif
  return result;
}

const Leaf7& CachedLeaf7() {
  static const Leaf7 leaf = ReadLeaf7();
  return leaf;
}

// What the CPU and its operating system support. Highway's version in Debian 12 has no target for
// AVX-512 BF16, so that bit is read here.
CpuIsa Detect() {
#if defined(__x86_64__)
  const int64_t targets = hwy::SupportedTargets();
  if (targets & HWY_AVX3) {
    return CachedLeaf7().avx512_bf16 ? CpuIsa::kAvx512Bf16 : CpuIsa::kAvx512;
  }
  if (targets & HWY_AVX2) return CpuIsa::kAvx2;
#endif
  return CpuIsa::kPortable;
}

CpuIsa Detected() {
  static const CpuIsa isa = Detect();
  return isa;
}

CpuIsa FromEnvironment() {
  const char* value = std::getenv("LITECACHE_CPU_ISA");
  if (value == nullptr || *value == '\0') return CpuIsa::kAvx512Bf16;
  for (CpuIsa isa : kLevels) {
    if (Name(isa) == value) return isa;
  }
  throw InvalidArgument("LITECACHE_CPU_ISA={}: not one of portable, avx2, avx512, avx512bf16",
                        value);
}

// Makes Highway's dynamic dispatch agree with the level.
void Apply(CpuIsa isa) {
#if defined(__x86_64__)
  hwy::SetSupportedTargetsForTest(0);
  int64_t allowed = hwy::SupportedTargets();
  if (isa < CpuIsa::kAvx512) allowed &= ~(HWY_AVX3 | (HWY_AVX3 - 1));
  if (isa < CpuIsa::kAvx2) allowed &= ~(HWY_AVX2 | (HWY_AVX2 - 1));
  hwy::SetSupportedTargetsForTest(allowed);
  hwy::GetChosenTarget().DeInit();
#endif
}

std::atomic<CpuIsa>& Active() {
  static std::atomic<CpuIsa> active = [] {
    const CpuIsa limit = FromEnvironment();
    const CpuIsa isa = limit < Detected() ? limit : Detected();
    if (isa < Detected()) Apply(isa);
    return isa;
  }();
  return active;
}

}  // namespace

std::string_view Name(CpuIsa isa) {
  constexpr std::array<std::string_view, 4> kNames = {"portable", "avx2", "avx512", "avx512bf16"};
  return kNames[static_cast<size_t>(isa)];
}

CpuIsa ActiveCpuIsa() { return Active().load(std::memory_order_relaxed); }

void LimitCpuIsa(CpuIsa limit) {
  const CpuIsa isa = limit < Detected() ? limit : Detected();
  Active() = isa;
  Apply(isa);
}

bool HasAmxBf16() { return ActiveCpuIsa() == CpuIsa::kAvx512Bf16 && CachedLeaf7().amx_bf16; }

}  // namespace litecache

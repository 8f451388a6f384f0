// Which vector instructions the CPU kernels use. Chosen once at run time: one binary runs anywhere.
#pragma once

#include <string_view>

namespace litecache {

// In ascending order; every level implies the ones before it.
enum class CpuIsa {
  kPortable,    // Highway's baseline: scalar code on x86-64, NEON on Arm
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // the above with BF16 dot products
};

// "portable", "avx2", "avx512", "avx512bf16".
std::string_view Name(CpuIsa isa);

// The level in use: the best of this CPU, limited by LITECACHE_CPU_ISA (one of the names above) and
// LimitCpuIsa. Throws InvalidArgument if the variable has another value.
CpuIsa ActiveCpuIsa();

// Lowers the level in use (for tests and benchmarks); a level that the CPU lacks selects its best
// one. Must not be called while an operation runs.
void LimitCpuIsa(CpuIsa limit);

// Whether the CPU has AMX tiles for BF16 and the level in use is the highest.
bool HasAmxBf16();

}  // namespace litecache

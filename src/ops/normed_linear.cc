#include "ops/normed_linear.h"

#include "device/sections.h"
#include "ops/cuda/available.h"
#include "ops/cuda/normed_linear.h"
#include "ops/norm.h"

namespace litecache::ops {
namespace {

void Norm(Stream& stream, const NormedRows& rows) {
  if (rows.second != nullptr) {
    RmsNormTwice(stream, rows.x, rows.weight, rows.second, rows.eps, rows.h);
  } else {
    RmsNorm(stream, rows.x, rows.weight, rows.eps, 1, rows.h);
  }
}

}  // namespace

void NormedLinear(Stream& stream, const NormedRows& rows, std::span<const LinearPart> parts) {
  if constexpr (cuda::kAvailable) {
    const SectionScope section(stream, Section::kProducts);
    if (cuda::RunsHere(stream) && cuda::NormedLinear(stream, rows, parts)) return;
  }
  Norm(stream, rows);
  Linear(stream, rows.h, parts);
}

void NormedGatedLinear(Stream& stream, const NormedRows& rows, const LinearPart& gate,
                       const LinearPart& up) {
  if constexpr (cuda::kAvailable) {
    const SectionScope section(stream, Section::kProducts);
    if (cuda::RunsHere(stream) && cuda::NormedGatedLinear(stream, rows, gate, up)) return;
  }
  Norm(stream, rows);
  GatedLinear(stream, rows.h, gate, up);
}

}  // namespace litecache::ops

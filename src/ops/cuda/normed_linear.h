// ops/normed_linear.h in one launch, where one row of x is few enough for it.
#pragma once

#include "ops/normed_linear.h"

namespace litecache::ops::cuda {

// False: not done, which the sizes decide. h is left alone.
bool NormedLinear(Stream& stream, const NormedRows& rows, std::span<const LinearPart> parts);
bool NormedGatedLinear(Stream& stream, const NormedRows& rows, const LinearPart& gate,
                       const LinearPart& up);

}  // namespace litecache::ops::cuda

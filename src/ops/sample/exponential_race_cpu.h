// An exponential race of a whole vocabulary on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "ops/sample/exponential_race.h"

namespace litecache::ops::cpu {

// The token that wins with weights exp((row[i] - row[best]) * scale), float as ExpOfNonPositive
// gives them. best is the token of the largest logit, which is finite; scale > 0. Tokens at minus
// infinity are never drawn.
int32_t DrawToken(std::span<const float> row, int32_t best, float scale, const RaceDraw& draw);

}  // namespace litecache::ops::cpu

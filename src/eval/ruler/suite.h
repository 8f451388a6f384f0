// RULER's samples as the evaluation's runner takes them.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/ruler/run.h"
#include "eval/task.h"

namespace litecache::eval {

// `input` without the answer prefix, which stands in answer_prefix; id "task/index"; metadata:
// "index", "seed", "split", "depths".
Sample ToSample(RulerSample sample);

// The samples RunGenerate() writes, in the same order. Throws what Generator throws.
std::vector<Sample> MakeRulerSamples(const GenerateOptions& options, const TokenCounter& counter);

}  // namespace litecache::eval

// RULER's samples as the evaluation's runner takes them.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/ruler/run.h"
#include "eval/task.h"

namespace litecache::eval {

// `input` without the answer prefix, which stands in answer_prefix; id "task/index"; length: tokens
// of prompt and answer; metadata:
// "index", "seed", "split", "depths".
Sample ToSample(RulerSample sample);

// The samples RunGenerate() writes, in the same order; length: the one asked for. Throws what
// ExpandTasks and MakeGenerator throw.
std::vector<Sample> MakeRulerSamples(const GenerateOptions& options, const TokenCounter& counter);

}  // namespace litecache::eval

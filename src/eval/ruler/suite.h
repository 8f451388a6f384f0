// RULER's samples in the form that the evaluation's runner uses.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/ruler/run.h"
#include "eval/task.h"

namespace litecache::eval {

// `input` excludes the answer prefix, which is stored in answer_prefix; id: "task/index"; length:
// tokens of prompt and answer; metadata: "index", "seed", "split", "depths".
Sample ToSample(RulerSample sample);

// The samples that RunGenerate() writes, in the same order; length: the requested one. Throws what
// ExpandTasks and MakeGenerator throw.
std::vector<Sample> MakeRulerSamples(const GenerateOptions& options, const TokenCounter& counter);

}  // namespace litecache::eval

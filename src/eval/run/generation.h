// Runs samples through configurations: prompts in, predictions and scores out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "eval/run/context.h"
#include "eval/run/journal.h"
#include "eval/task.h"

namespace litecache::eval {

// The samples of one length, made when their turn comes and dropped after it: 13 tasks of 500
// samples of 32K tokens are 650 MB.
struct SampleGroup {
  int64_t length = 0;
  int64_t expected = 0;  // how many there are likely to be, for the time left
  std::function<std::vector<Sample>()> make;
};

// Token ids of a sample's prompt, answer prefix included. Called from several threads.
using PromptEncoder = std::function<std::vector<int32_t>(const Sample&)>;

// Every group under every configuration; results that the journal has are not computed again.
// Samples of a group run together (continuous batching), each configuration in an engine of its
// own. Stops early, with what has ended written, when context.interrupted() says so. Throws what
// loading, sample making and the journal throw. Returns the number of samples that failed, each
// noted.
int64_t RunGeneration(const RunContext& context, const std::vector<SampleGroup>& groups,
                      const PromptEncoder& encode, Journal& journal);

}  // namespace litecache::eval

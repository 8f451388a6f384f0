// Runs samples under all configurations: prompts in, predictions and scores out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "eval/run/context.h"
#include "eval/run/journal.h"
#include "eval/task.h"

namespace litecache::eval {

// The samples of one length, made when needed and dropped afterwards: 13 tasks with 500 samples of
// 32K tokens are 650 MB.
struct SampleGroup {
  int64_t length = 0;
  int64_t expected = 0;  // expected number of samples, for the time left
  std::function<std::vector<Sample>()> make;
};

// Token ids of a sample's prompt, including the answer prefix. Called from several threads.
using PromptEncoder = std::function<std::vector<int32_t>(const Sample&)>;

// Runs every group under every configuration; results already in the journal are not computed
// again. Samples of a group run together (continuous batching); each configuration has a separate
// engine. Stops early when context.interrupted() returns true, with all finished results written.
// Throws what loading, sample making and the journal throw. Returns the number of failed samples;
// each is reported.
int64_t RunGeneration(const RunContext& context, const std::vector<SampleGroup>& groups,
                      const PromptEncoder& encode, Journal& journal);

}  // namespace litecache::eval

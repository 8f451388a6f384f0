// Requests and answers for the tests of EngineOptions::deterministic, on the CPU and on a GPU.
#pragma once

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "io/file.h"
#include "litecache/engine.h"
#include "source_directory.h"
#include "tokenizer/tokenizer.h"

namespace litecache::engine {

inline std::string DemoModel() {
  return (SourceDirectory() / "models/litecache-demo-16m").string();
}

// Small chunks, so that prompts have several; a budget that leaves out most rows.
inline EngineOptions Deterministic(const std::string& policy) {
  EngineOptions options;
  options.deterministic = true;
  options.memory = uint64_t{1} << 30;
  options.max_context = 2048;
  options.max_batch = 32;
  options.prefill_chunk = 128;
  options.prefill_chunk_beside_decode = 32;
  options.show_progress = false;
  options.kv.policy = policy;
  if (policy == "litecache") {
    options.kv.budget = KvBudget::Parse("48");
    options.kv.recent_tokens = 16;
  }
  return options;
}

// 16 requests for 20 samples, more than a step decodes together: prompts of 5 to 680 tokens, half
// of them sampled with a seed, several with a common beginning.
inline std::vector<Request> DeterministicRequests(const tokenizer::Tokenizer& tokenizer) {
  const std::vector<int32_t> text =
      tokenizer.Encode(io::ReadTextFile(SourceDirectory() / "docs/reference/server.md"));
  std::vector<Request> requests(16);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    const auto begin = text.begin() + static_cast<int64_t>(i % 4 == 0 ? 0 : 120 * i);
    request.prompt.assign(begin, begin + static_cast<int64_t>(5 + 45 * i));
    request.max_tokens = 24;
    request.ignore_eos = true;
    request.n = i % 4 == 1 ? 2 : 1;
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.9;
    request.sampling.seed = i;
  }
  return requests;
}

// The tokens of every request's samples.
struct Answers {
  std::vector<std::vector<int32_t>> tokens;

  static Answers OneByOne(Engine& engine, const std::vector<Request>& requests) {
    Answers answers;
    for (const Request& request : requests) answers.Read(*engine.Submit(request), request.n);
    return answers;
  }
  static Answers Together(Engine& engine, const std::vector<Request>& requests) {
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (const Request& request : requests) handles.push_back(engine.Submit(request));
    Answers answers;
    for (size_t i = 0; i < handles.size(); ++i) answers.Read(*handles[i], requests[i].n);
    return answers;
  }
  bool operator==(const Answers&) const = default;
  // How many samples have the same tokens.
  size_t Equal(const Answers& other) const {
    size_t count = 0;
    for (size_t i = 0; i < tokens.size(); ++i) count += tokens[i] == other.tokens.at(i);
    return count;
  }

 private:
  void Read(RequestHandle& handle, int n) {
    const size_t first = tokens.size();
    tokens.resize(first + static_cast<size_t>(n));
    while (const auto chunk = handle.Next()) {
      auto& sample = tokens[first + static_cast<size_t>(chunk->sample)];
      sample.insert(sample.end(), chunk->tokens.begin(), chunk->tokens.end());
    }
  }
};

inline void PrintTo(const Answers& answers, std::ostream* out) {
  *out << answers.tokens.size() << " samples";
}

}  // namespace litecache::engine

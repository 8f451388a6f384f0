// Reads the tokens of submitted requests as they arrive.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "litecache/engine.h"

namespace litecache::cli {

// The output of one sample.
struct SampleResult {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<TokenLogprob> logprobs;                   // one per token, if requested
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // likewise
  FinishReason finish = FinishReason::kNone;
};

struct RequestResult {
  std::vector<SampleResult> samples;
  RequestStats stats;
};

// Reads `handle` to its end. `on_text` receives the new text of a sample as it arrives. `on_wait`
// is called at least ten times a second, and may cancel the request. Throws Error when the engine
// reports one.
RequestResult Collect(RequestHandle& handle, int samples,
                      const std::function<void(int sample, const std::string& text)>& on_text,
                      const std::function<void()>& on_wait);

// "stop", "length", "cancelled", ...
std::string_view Name(FinishReason reason);

}  // namespace litecache::cli

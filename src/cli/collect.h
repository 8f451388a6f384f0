// Reads the tokens of submitted requests as they come.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "litecache/engine.h"

namespace litecache::cli {

// What one sample has become.
struct SampleResult {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<TokenLogprob> logprobs;                   // one a token, when asked for
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // likewise
  FinishReason finish = FinishReason::kNone;
};

struct RequestResult {
  std::vector<SampleResult> samples;
  RequestStats stats;
};

// Reads `handle` to its end. `on_text` gets the new text of a sample as it comes. `on_wait` is
// called at least ten times a second, and may cancel the request. Throws Error when the engine
// reports one.
RequestResult Collect(RequestHandle& handle, int samples,
                      const std::function<void(int sample, const std::string& text)>& on_text,
                      const std::function<void()>& on_wait);

// "stop", "length", "cancelled", ...
std::string_view Name(FinishReason reason);

}  // namespace litecache::cli

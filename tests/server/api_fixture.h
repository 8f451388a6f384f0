// A server and the engine behind it, to compare their answers.
#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/test_server.h"
#include "tokenizer/chat_encoder.h"

namespace litecache::testing {

class Api : public SharedServerTest {
 protected:
  const tokenizer::Tokenizer& tokenizer() { return server().engine().tokenizer(); }

  struct Direct {
    std::vector<int32_t> tokens;
    std::string text;
    std::vector<float> logprobs;
    FinishReason finish = FinishReason::kNone;
  };
  // The engine's own answers, by sample.
  std::vector<Direct> Generate(Request request) {
    const int n = request.n;
    const auto handle = server().engine().Submit(std::move(request));
    std::vector<Direct> answers(static_cast<size_t>(n));
    while (const auto chunk = handle->Next()) {
      Direct& answer = answers[static_cast<size_t>(chunk->sample)];
      answer.text += chunk->text;
      answer.tokens.insert(answer.tokens.end(), chunk->tokens.begin(), chunk->tokens.end());
      if (chunk->logprob) answer.logprobs.push_back(chunk->logprob->logprob);
      if (chunk->finish != FinishReason::kNone) answer.finish = chunk->finish;
    }
    return answers;
  }
  std::vector<int32_t> ChatPrompt(const std::string& text) {
    const tokenizer::ChatEncoder encoder(tokenizer(),
                                         tokenizer::ChatTemplate::FromModel(SharedModel().path()));
    return encoder.Encode(Json::array({Json{{"role", "user"}, {"content", text}}}));
  }
  static std::string Param(const Json& error) {
    return error["param"].is_string() ? error["param"].get<std::string>() : "";
  }
  static Request Greedy(std::vector<int32_t> prompt, int64_t max_tokens) {
    Request request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    return request;
  }
};

}  // namespace litecache::testing

// /infill and "suffix": the prompt of a tokenizer's own tokens, answers in llama.cpp's form,
// refusals.
#include <gmock/gmock.h>

#include "cli/fixture_model.h"
#include "server/test_server.h"

namespace litecache::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The tokenizer of the fixture with more special tokens, from id 182 on.
std::string WithTokens(const std::vector<std::string>& names) {
  Json tokenizer = Json::parse(FixtureTokenizer());
  for (const std::string& name : names) {
    Json token = tokenizer["added_tokens"].back();
    const int id = 182 + static_cast<int>(tokenizer["added_tokens"].size()) - 6;
    token["id"] = id;
    token["content"] = name;
    tokenizer["added_tokens"].push_back(token);
    tokenizer["model"]["vocab"][name] = id;
  }
  return tokenizer.dump();
}

class Coder {
 public:
  explicit Coder(const std::vector<std::string>& tokens) {
    directory_.Write("tokenizer.json", WithTokens(tokens));
    TestServer::Options options;
    options.model = model_.path();
    server_ = std::make_unique<TestServer>(options);
  }
  TestServer& server() { return *server_; }
  std::vector<int> Ids(const std::string& text) {
    return server_->Ask("/tokenize", {{"prompt", text}, {"add_special_tokens", false}})["tokens"];
  }
  // The prompt of a completion.
  std::vector<int> Prompt(Json body) {
    body.update({{"max_tokens", 1}, {"return_token_ids", true}});
    return server_->Ask("/v1/completions", body)["choices"][0]["prompt_token_ids"];
  }

 private:
  FixtureModel model_;
  const TemporaryDirectory& directory_ = model_.directory();
  std::unique_ptr<TestServer> server_;
};

const std::vector<std::string> kQwen = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
                                        "<|file_sep|>"};

TEST(Infill, ASuffixStandsBetweenTheTokensOfTheTokenizer) {
  Coder qwen(kQwen);
  EXPECT_EQ(qwen.Prompt({{"prompt", "the"}, {"suffix", "in"}}),
            qwen.Ids("<s><|fim_prefix|>the<|fim_suffix|>in<|fim_middle|>"));
  // What a file spells out is no token.
  EXPECT_GT(qwen.Prompt({{"prompt", "<|fim_middle|>"}, {"suffix", "in"}}).size(), 12u);
  Coder codestral({"[PREFIX]", "[SUFFIX]"});
  EXPECT_EQ(codestral.Prompt({{"prompt", "the"}, {"suffix", "in"}}),
            codestral.Ids("<s>[SUFFIX]in[PREFIX]the"));
}

TEST(Infill, AnAnswerEndsAtATokenOfTheNextPart) {
  Coder qwen(kQwen);
  const int end = qwen.Ids("<|file_sep|>")[0];
  const Json answer = qwen.server().Ask(
      "/infill",
      {{"input_prefix", "the"}, {"n_predict", 9}, {"logit_bias", {{std::to_string(end), 100}}}});
  EXPECT_EQ(answer["content"], "");
  EXPECT_EQ(answer["stop_type"], "eos");
}

TEST(Infill, AnswersOfLlamaCppsForm) {
  Coder qwen(kQwen);
  const Json body = {{"input_prefix", "def f("},
                     {"input_suffix", "in"},
                     {"prompt", "the"},
                     {"input_extra", {{{"filename", "a.py"}, {"text", "on"}}}},
                     {"n_predict", 8},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     // What an editor's plugin sends.
                     {"samplers", {"top_k", "top_p", "infill"}},
                     {"t_max_predict_ms", 1000},
                     {"n_indent", 4},
                     {"cache_prompt", true},
                     {"response_fields", {"content"}}};
  const Json answer = qwen.server().Ask("/infill", body);
  const std::string prompt =
      "<|file_sep|>a.py\non\n<|file_sep|><|fim_prefix|>def f(<|fim_suffix|>in<|fim_middle|>the";
  const Json same = qwen.server().Ask("/v1/completions", {{"prompt", "<s>" + prompt},
                                                          {"add_special_tokens", false},
                                                          {"max_tokens", 8},
                                                          {"temperature", 0},
                                                          {"ignore_eos", true}});
  EXPECT_EQ(answer["content"], same["choices"][0]["text"]);
  EXPECT_EQ(answer["tokens_evaluated"], same["usage"]["prompt_tokens"]);
  EXPECT_EQ(answer["tokens_predicted"], 8);
  EXPECT_EQ(answer["stop"], true);
  EXPECT_EQ(answer["stop_type"], "limit");
  EXPECT_EQ(answer["timings"]["predicted_n"], 8);

  Json streamed = body;
  streamed["stream"] = true;
  std::string text;
  const Reply reply = qwen.server().Post("/infill", streamed);
  for (const auto& event : Events(reply.body)) {
    text += Json::parse(event)["content"].get<std::string>();
  }
  EXPECT_EQ(Json(text), answer["content"]);
  const Json last = Json::parse(Events(reply.body).back());
  EXPECT_EQ(last["stop"], true);
  EXPECT_EQ(last["tokens_predicted"], 8);

  const auto word = answer["content"].get<std::string>().substr(1, 1);
  Json stopped = body;
  stopped["stop"] = {word};
  const Json shorter = qwen.server().Ask("/infill", stopped);
  EXPECT_EQ(shorter["stop_type"], "word");
  EXPECT_EQ(shorter["stopping_word"], word);
}

TEST(Infill, WhatCannotBeDoneIsRefused) {
  Coder qwen(kQwen);
  TestServer& server = qwen.server();
  const auto param = [&](const char* path, const Json& body, const char* part) {
    return server.ExpectError(path, body, 400, part)["param"];
  };
  EXPECT_EQ(param("/infill", {{"n_predict", 4}}, "input_suffix"), "input_prefix");
  EXPECT_EQ(param("/infill", {{"input_prefix", "x"}, {"n_predict", 0}}, "at least 1"), "n_predict");
  EXPECT_EQ(param("/infill", {{"input_prefix", "x"}, {"n", 2}}, "one answer"), "n");
  EXPECT_EQ(param("/infill", {{"input_prefix", "x"}, {"input_extra", {{{"text", 1}}}}}, "string"),
            "input_extra[0].text");
  for (const Json& more : {Json{{"echo", true}}, Json{{"truncate_prompt_tokens", 5}},
                           Json{{"add_special_tokens", false}}}) {
    Json body = {{"prompt", "x"}, {"suffix", "y"}};
    body.update(more);
    EXPECT_EQ(param("/v1/completions", body, "cannot be combined"), "suffix");
  }
  EXPECT_EQ(param("/v1/completions", {{"prompt", {"x", "y"}}, {"suffix", "z"}}, "string"),
            "prompt");
  const std::string large(1 << 20, 'x');
  const Json error =
      server.ExpectError("/infill", {{"input_prefix", "x"}, {"input_suffix", large}}, 400, "");
  EXPECT_EQ(error["code"], "context_length_exceeded");
}

TEST(Infill, ATokenizerWithoutTheTokensIsNamed) {
  TestServer server;
  EXPECT_EQ(server.ExpectError("/v1/completions", {{"prompt", "x"}, {"suffix", "y"}}, 400,
                               "filling in the middle")["param"],
            "suffix");
  EXPECT_EQ(
      server.ExpectError("/infill", {{"input_prefix", "x"}}, 400, "filling in the middle")["param"],
      "input_prefix");
}

TEST(Embeddings, AreNotComputed) {
  TestServer server;
  for (const char* path : {"/v1/embeddings", "/embeddings"}) {
    EXPECT_EQ(server.ExpectError(path, {{"input", "x"}}, 404, "embeddings")["code"], "not_found");
  }
}

}  // namespace
}  // namespace litecache::testing

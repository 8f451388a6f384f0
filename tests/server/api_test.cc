// What the endpoints generate, compared with the engine's own answers.
#include "server/api_fixture.h"
#include "tokenizer/utf8.h"

namespace litecache::testing {
namespace {

TEST_F(Api, AChatIsWhatTheEngineSays) {
  const auto direct = Generate(Greedy(ChatPrompt("the cat </s> sat"), 20))[0];
  const Json answer = server().Ask(
      "/v1/chat/completions",
      ChatBody("the cat </s> sat",
               {{"temperature", 0}, {"max_completion_tokens", 20}, {"model", "tiny"}}));
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_THAT(answer["id"].get<std::string>(), ::testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(answer["choices"].size(), 1u);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], direct.text);
  EXPECT_EQ(choice["finish_reason"], direct.finish == FinishReason::kLength ? "length" : "stop");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], ChatPrompt("the cat </s> sat").size());
  EXPECT_EQ(answer["usage"]["completion_tokens"], direct.tokens.size());
  EXPECT_EQ(answer["usage"]["total_tokens"],
            ChatPrompt("the cat </s> sat").size() + direct.tokens.size());
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST_F(Api, AStreamedChatIsTheSameText) {
  const Json body = ChatBody("on the mat", {{"temperature", 0}, {"max_tokens", 30}});
  const Json whole = server().Ask("/v1/chat/completions", body);
  Json with_usage = body;
  with_usage["stream_options"] = {{"include_usage", true}};
  const auto events = server().Stream("/v1/chat/completions", with_usage);
  ASSERT_GE(events.size(), 3u);
  std::string text, finish;
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], events[0]["id"]);
    if (event["choices"].empty()) continue;
    text += event["choices"][0]["delta"].value("content", "");
    if (event["choices"][0]["finish_reason"].is_string()) {
      EXPECT_EQ(finish, "");
      finish = event["choices"][0]["finish_reason"];
    }
  }
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(Json(text), whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(Json(finish), whole["choices"][0]["finish_reason"]);
  EXPECT_EQ(events.back()["usage"], whole["usage"]);
  EXPECT_TRUE(events[0]["usage"].is_null());
  // Usage is not sent unless requested.
  for (const Json& event : server().Stream("/v1/chat/completions", body)) {
    EXPECT_FALSE(event.contains("usage"));
  }
}

TEST_F(Api, SeveralSamplesAreTheEnginesInTheirOrder) {
  Request request;
  request.prompt = ChatPrompt("many");
  request.sampling.temperature = 1.5;
  request.sampling.seed = 77;
  request.n = 3;
  request.max_tokens = 12;
  const auto direct = Generate(request);
  const Json body =
      ChatBody("many", {{"temperature", 1.5}, {"seed", 77}, {"n", 3}, {"max_tokens", 12}});
  const Json answer = server().Ask("/v1/chat/completions", body);
  ASSERT_EQ(answer["choices"].size(), 3u);
  std::vector<std::string> streamed(3);
  for (const Json& event : server().Stream("/v1/chat/completions", body)) {
    const Json& choice = event["choices"][0];
    streamed[choice["index"].get<size_t>()] += choice["delta"].value("content", "");
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["message"]["content"], direct[i].text);
    EXPECT_EQ(streamed[i], direct[i].text);
  }
}

TEST_F(Api, LogprobsOfAChat) {
  Request request = Greedy(ChatPrompt("logs"), 8);
  request.logprobs = 4;
  const auto direct = Generate(request)[0];
  const Json body = ChatBody(
      "logs", {{"temperature", 0}, {"max_tokens", 8}, {"logprobs", true}, {"top_logprobs", 4}});
  const Json answer = server().Ask("/v1/chat/completions", body);
  const Json& content = answer["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), direct.tokens.size());
  Json streamed = Json::array();
  for (const Json& event : server().Stream("/v1/chat/completions", body)) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_object()) streamed.push_back(logprobs["content"][0]);
  }
  EXPECT_EQ(streamed, content);
  for (size_t i = 0; i < content.size(); ++i) {
    EXPECT_NEAR(content[i]["logprob"].get<double>(), direct.logprobs[i], 1e-4);
    ASSERT_EQ(content[i]["top_logprobs"].size(), 4u);
    // Greedy: the chosen token is the first of the most likely ones, which are in descending order.
    EXPECT_EQ(content[i]["top_logprobs"][0]["token"], content[i]["token"]);
    for (size_t k = 1; k < 4; ++k) {
      EXPECT_LE(content[i]["top_logprobs"][k]["logprob"],
                content[i]["top_logprobs"][k - 1]["logprob"]);
    }
  }
}

// By their bytes, tokens that share a character are joined.
TEST_F(Api, LogprobsHaveTheBytesOfPartsOfCharacters) {
  const Json answer =
      server().Ask("/v1/chat/completions", ChatBody("x", {{"temperature", 5},
                                                          {"seed", 7},
                                                          {"max_tokens", 300},
                                                          {"ignore_eos", true},
                                                          {"skip_special_tokens", false},
                                                          {"logprobs", true},
                                                          {"top_logprobs", 20}}));
  const Json& choice = answer["choices"][0];
  std::string bytes;
  int parts = 0;
  const auto read = [&](const Json& entry) {
    std::string read;
    for (const Json& byte : entry["bytes"]) read += static_cast<char>(byte.get<int>());
    const auto token = entry["token"].get<std::string>();
    EXPECT_EQ(tokenizer::RepairUtf8(read), token);
    parts += read != token;
    return read;
  };
  for (const Json& entry : choice["logprobs"]["content"]) {
    bytes += read(entry);
    for (const Json& other : entry["top_logprobs"]) read(other);
  }
  EXPECT_EQ(tokenizer::RepairUtf8(bytes), choice["message"]["content"]);
  EXPECT_GT(parts, 0);
}

TEST_F(Api, CompletionsTakeTextsAndIds) {
  const auto ids = tokenizer().Encode("the sun");
  const auto direct = Generate(Greedy(ids, 10))[0];
  const Json common = {{"temperature", 0}, {"max_tokens", 10}};
  const auto with = [&](const Json& prompt) {
    Json body = common;
    body["prompt"] = prompt;
    return server().Ask("/v1/completions", body);
  };
  for (const Json& prompt :
       {Json("the sun"), Json(ids), Json::array({"the sun"}), Json::array({Json(ids)})}) {
    const Json answer = with(prompt);
    EXPECT_EQ(answer["object"], "text_completion");
    EXPECT_EQ(answer["choices"][0]["text"], direct.text) << prompt;
  }
  const auto other = Generate(Greedy(tokenizer().Encode("a dog"), 10))[0];
  const Json both = with(Json::array({"the sun", "a dog"}));
  ASSERT_EQ(both["choices"].size(), 2u);
  EXPECT_EQ(both["choices"][0]["text"], direct.text);
  EXPECT_EQ(both["choices"][1]["text"], other.text);
  EXPECT_EQ(both["usage"]["completion_tokens"], direct.tokens.size() + other.tokens.size());
  // The default length of this endpoint.
  const Json answer = server().Ask("/v1/completions", {{"prompt", "the"}, {"ignore_eos", true}});
  EXPECT_EQ(answer["usage"]["completion_tokens"], 16);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
}

TEST_F(Api, CompletionsEchoAndLogprobs) {
  const Json echo = server().Ask("/v1/completions", {{"prompt", "the sun"}, {"echo", true}});
  EXPECT_THAT(echo["choices"][0]["text"].get<std::string>(), ::testing::StartsWith("the sun"));
  const Json answer = server().Ask(
      "/v1/completions", {{"prompt", "x"}, {"max_tokens", 6}, {"logprobs", 2}, {"temperature", 0}});
  const Json& logprobs = answer["choices"][0]["logprobs"];
  const auto count = answer["usage"]["completion_tokens"].get<size_t>();
  for (const char* field : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(logprobs[field].size(), count) << field;
  }
  EXPECT_EQ(logprobs["text_offset"][0], 0);
}

TEST_F(Api, StopsAndTheirTokens) {
  const auto direct = Generate(Greedy(tokenizer().Encode("stop"), 40))[0];
  // Two ASCII characters of the answer, after its beginning.
  std::string stop;
  for (size_t i = 3; i + 1 < direct.text.size() && stop.empty(); ++i) {
    if (direct.text[i] > ' ' && direct.text[i + 1] > ' ') stop = direct.text.substr(i, 2);
  }
  ASSERT_EQ(stop.size(), 2u) << direct.text;
  const Json answer = server().Ask(
      "/v1/completions",
      {{"prompt", "stop"}, {"temperature", 0}, {"max_tokens", 40}, {"stop", {stop, "nowhere"}}});
  EXPECT_EQ(answer["choices"][0]["text"], direct.text.substr(0, direct.text.find(stop)));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  const Json by_id = server().Ask("/v1/completions", {{"prompt", "stop"},
                                                      {"temperature", 0},
                                                      {"max_tokens", 40},
                                                      {"stop_token_ids", {direct.tokens[3]}}});
  EXPECT_LE(by_id["usage"]["completion_tokens"], 4);
  EXPECT_EQ(by_id["choices"][0]["finish_reason"], "stop");
}

TEST_F(Api, ASeedGivesTheSameTextAndABiasForcesAToken) {
  const Json body = ChatBody("roll", {{"temperature", 2}, {"max_tokens", 16}, {"seed", -5}});
  EXPECT_EQ(server().Ask("/v1/chat/completions", body)["choices"],
            server().Ask("/v1/chat/completions", body)["choices"]);
  const int32_t forced = tokenizer().Encode("z", {.add_special_tokens = false})[0];
  const Json answer = server().Ask(
      "/v1/completions",
      {{"prompt", "x"}, {"max_tokens", 3}, {"logit_bias", {{std::to_string(forced), 100}}}});
  EXPECT_EQ(answer["choices"][0]["text"], "zzz");
}

TEST_F(Api, PrefillProgressOnRequest) {
  std::string text;
  for (int i = 0; i < 800; ++i) text += "abcdefgh"[i % 8];
  const auto events = server().Stream(
      "/v1/chat/completions", ChatBody(text, {{"max_tokens", 2}, {"return_progress", true}}));
  int64_t last = -1;
  for (const Json& event : events) {
    if (!event.contains("prompt_progress")) continue;
    const Json& progress = event["prompt_progress"];
    EXPECT_GT(progress["processed"].get<int64_t>(), last);
    last = progress["processed"];
    EXPECT_EQ(progress["total"], ChatPrompt(text).size());
  }
  EXPECT_EQ(last, static_cast<int64_t>(ChatPrompt(text).size()));
}

TEST_F(Api, Responses) {
  const auto direct = Generate(Greedy(ChatPrompt("hello"), 9))[0];
  const Json body = {{"input", "hello"}, {"temperature", 0}, {"max_output_tokens", 9}};
  const Json answer = server().Ask("/v1/responses", body);
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], direct.text);
  EXPECT_EQ(answer["usage"]["output_tokens"], direct.tokens.size());
  EXPECT_EQ(answer["status"], direct.finish == FinishReason::kLength ? "incomplete" : "completed");
  const auto events = server().Stream("/v1/responses", body);
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    if (events[i]["type"] == "response.output_text.delta") {
      text += events[i]["delta"].get<std::string>();
    }
  }
  EXPECT_EQ(text, direct.text);
  EXPECT_EQ(events.front()["type"], "response.created");
  EXPECT_EQ(events.back()["response"]["output"][0]["content"], answer["output"][0]["content"]);
  // A conversation as items with instructions is equivalent to the chat with a system message.
  const Json items = {
      {"instructions", "be brief"},
      {"input", Json::array({Json{
                    {"role", "user"},
                    {"content", Json::array({Json{{"type", "input_text"}, {"text", "hi"}}})}}})},
      {"temperature", 0},
      {"max_output_tokens", 9}};
  const Json chat = {{"messages", Json::array({Json{{"role", "system"}, {"content", "be brief"}},
                                               Json{{"role", "user"}, {"content", "hi"}}})},
                     {"temperature", 0},
                     {"max_tokens", 9}};
  EXPECT_EQ(server().Ask("/v1/responses", items)["output"][0]["content"][0]["text"],
            server().Ask("/v1/chat/completions", chat)["choices"][0]["message"]["content"]);
  server().ExpectError("/v1/responses", {{"input", "x"}, {"previous_response_id", "resp_1"}}, 400,
                       "previous_response_id");
}

}  // namespace
}  // namespace litecache::testing

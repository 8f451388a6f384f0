// The endpoints' answers, compared with direct use of the engine.
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <regex>
#include <set>
#include <thread>

#include "server/test_server.h"
#include "source_directory.h"
#include "tokenizer/chat_encoder.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

class Api : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new TestServer(); }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  TestServer& server() { return *server_; }
  const tokenizer::Tokenizer& tokenizer() { return server_->engine().tokenizer(); }

  struct Direct {
    std::vector<int32_t> tokens;
    std::string text;
    std::vector<float> logprobs;
    FinishReason finish = FinishReason::kNone;
  };
  // The engine's own answers, by sample.
  std::vector<Direct> Generate(Request request) {
    const int n = request.n;
    const auto handle = server_->engine().Submit(std::move(request));
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

 private:
  static TestServer* server_;
};

TestServer* Api::server_ = nullptr;

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

TEST_F(Api, TokenizeAndDetokenize) {
  const auto ids = tokenizer().Encode("the cat");
  const Json answer = server().Ask("/tokenize", {{"prompt", "the cat"}});
  EXPECT_EQ(answer["tokens"], Json(ids));
  EXPECT_EQ(answer["count"], ids.size());
  EXPECT_EQ(server().Ask("/tokenize", ChatBody("hey"))["tokens"], Json(ChatPrompt("hey")));
  EXPECT_EQ(server().Ask("/detokenize", {{"tokens", ids}, {"skip_special_tokens", true}})["prompt"],
            "the cat");
  const Json strings =
      server().Ask("/tokenize", {{"content", " the"}, {"return_token_strs", true}});
  EXPECT_EQ(strings["token_strs"].back(), " the");
  EXPECT_EQ(server().Ask("/tokenize", {{"content", "the"}, {"add_special", false}}),
            server().Ask("/tokenize", {{"content", "the"}, {"add_special_tokens", false}}));
  server().ExpectError("/tokenize", {{"content", "the"}, {"with_pieces", true}}, 400,
                       "return_token_strs");
  server().ExpectError("/detokenize", {{"tokens", {100000}}}, 400, "out of range");
}

TEST_F(Api, ModelsPropsAndMetrics) {
  const Json models = Json::parse(server().Get("/v1/models").body);
  ASSERT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 1024);
  EXPECT_EQ(Json::parse(server().Get("/v1/models/alias").body)["id"], "alias");
  EXPECT_EQ(server().Get("/v1/models/nobody").status, 404);
  const Json props = Json::parse(server().Get("/props").body);
  EXPECT_EQ(props["kv"]["policy"], "full");
  EXPECT_THAT(props["chat_template"].get<std::string>(), HasSubstr("m.content"));
  server().Ask("/v1/completions", {{"prompt", "the"}, {"max_tokens", 2}, {"ignore_eos", true}});
  // An answer reaches its client slightly before its request is removed from the counters.
  Reply metrics = server().Get("/metrics");
  for (int i = 0;
       i < 500 && !(metrics.body.find("litecache_requests_running 0\n") != std::string::npos);
       ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    metrics = server().Get("/metrics");
  }
  EXPECT_THAT(metrics.headers.at("content-type"), HasSubstr("version=0.0.4"));
  for (const char* line :
       {"litecache_requests_running 0\n", "litecache_requests_waiting 0\n",
        "litecache_time_to_first_token_seconds_bucket{le=\"+Inf\"}",
        "litecache_kv_capacity_bytes{tier=\"host\"}", "litecache_kv_hit_ratio 0\n",
        "litecache_http_responses_total{route=\"/v1/completions\",status=\"200\"}"}) {
    EXPECT_THAT(metrics.body, HasSubstr(line));
  }
}

// docs/reference/server.md has a table of them; `prefix_store_*` matches several.
TEST_F(Api, MetricsAreThoseOfTheirPage) {
  const std::string body = server().Get("/metrics").body;
  std::set<std::string> given;
  const std::regex family("# TYPE litecache_([a-z_]+) ");
  for (std::sregex_iterator at(body.begin(), body.end(), family), end; at != end; ++at) {
    given.insert((*at)[1]);
  }
  ASSERT_GT(given.size(), 20u);

  std::ifstream file(SourceDirectory() / "docs/reference/server.md");
  std::set<std::string> told;
  bool metrics = false;
  const std::regex name("`([a-z_]+)(\\{[a-z,]*\\})?`");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) metrics = line == "## Metrics";
    if (!metrics || !line.starts_with("| `")) continue;
    const std::string cell = line.substr(0, line.find(" | "));
    for (std::sregex_iterator at(cell.begin(), cell.end(), name), end; at != end; ++at) {
      told.insert((*at)[1]);
    }
  }
  EXPECT_EQ(given, told);
}

TEST_F(Api, WhatIsNotSupportedIsRefusedByName) {
  const auto chat = [&](const Json& more) { return ChatBody("x", more); };
  const auto code = [&](const Json& body) {
    const Json error = server().ExpectError("/v1/chat/completions", body, 400, "");
    return error["code"].get<std::string>() + " " + Param(error);
  };
  EXPECT_EQ(code(chat({{"allowed_token_ids", {5}}})), "unsupported_parameter allowed_token_ids");
  EXPECT_EQ(code(chat({{"audio", Json::object()}})), "unsupported_parameter audio");
  EXPECT_EQ(code(chat({{"chat_template", "x"}})), "invalid_value chat_template");
  EXPECT_EQ(code(chat({{"mirostat", 2}})), "unsupported_parameter mirostat");
  EXPECT_EQ(code(chat({{"repeat_penalty", 1.1}})), "unsupported_parameter repeat_penalty");
  // The fields of a response have different names.
  const auto response = [&](const Json& input, const Json& more) {
    Json body = {{"input", input}};
    body.update(more);
    return Param(server().ExpectError("/v1/responses", body, 400, ""));
  };
  EXPECT_EQ(response("x", {{"max_tokens", 5}}), "max_tokens");
  EXPECT_EQ(response(Json::array({Json{{"role", "judge"}, {"content", "x"}}}),
                     {{"instructions", "be just"}}),
            "input[0].role");
  // Values that request nothing are accepted, and so are unset fields.
  server().Ask("/v1/chat/completions", chat({{"max_tokens", 1},
                                             {"user", "me"},
                                             {"min_tokens", 0},
                                             {"store", false},
                                             {"mirostat", 0},
                                             {"repeat_penalty", 1.0},
                                             {"tools", nullptr},
                                             {"response_format", {{"type", "text"}}},
                                             {"n", nullptr},
                                             {"frobnicate", nullptr}}));
}

TEST_F(Api, WrongValuesAreNamed) {
  const auto param = [&](const Json& more) {
    return Param(server().ExpectError("/v1/chat/completions", ChatBody("x", more), 400, ""));
  };
  EXPECT_EQ(param({{"temperature", -1}}), "temperature");
  EXPECT_EQ(param({{"temperature", "hot"}}), "temperature");
  EXPECT_EQ(param({{"top_p", 0}}), "top_p");
  EXPECT_EQ(param({{"n", 0}}), "n");
  EXPECT_EQ(param({{"n", 1.5}}), "n");
  EXPECT_EQ(param({{"max_tokens", 0}}), "max_tokens");
  EXPECT_EQ(param({{"max_tokens", 18446744073709551615u}}), "");  // the engine's error: too long
  EXPECT_EQ(param({{"logit_bias", {{"x", 1}}}}), "logit_bias");
  EXPECT_EQ(param({{"logit_bias", {{"5", 1000}}}}), "logit_bias");
  EXPECT_EQ(param({{"stop", 5}}), "stop");
  EXPECT_EQ(param({{"top_logprobs", 3}}), "top_logprobs");
  EXPECT_EQ(param({{"stop_token_ids", {-4}}}), "stop_token_ids");
  EXPECT_EQ(param({{"messages", Json::array()}}), "messages");
  EXPECT_EQ(param({{"messages", Json::array({Json{{"role", "robot"}, {"content", "x"}}})}}),
            "messages[0].role");
  EXPECT_EQ(param({{"messages", Json::array({Json{{"role", "user"}}})}}), "messages[0].content");
  EXPECT_EQ(
      param({{"messages",
              Json::array({Json{
                  {"role", "user"},
                  {"content", Json::array({Json{{"type", "image_url"}, {"image_url", "x"}}})}}})}}),
      "messages[0].content[0].type");
  EXPECT_EQ(server().ExpectError("/v1/chat/completions", ChatBody("x", {{"model", "gpt"}}), 404,
                                 "tiny")["code"],
            "model_not_found");
  EXPECT_EQ(server().ExpectError("/v1/completions",
                                 {{"prompt", std::string(5000, 'x')}, {"max_tokens", 5}}, 400,
                                 "1024")["code"],
            "context_length_exceeded");
  server().ExpectError("/v1/completions", {{"prompt", {1, 2, 99999}}}, 400, "vocabulary");
  server().ExpectError("/v1/completions", {{"prompt", Json::array()}}, 400, "prompt");
  server().ExpectError("/v1/completions", {{"max_tokens", 5}}, 400, "prompt");
}

TEST_F(Api, BodiesThatAreNoJson) {
  const auto post = [&](const std::string& body) {
    const Reply reply = Call(server().port(), "POST", "/v1/completions", body);
    EXPECT_EQ(reply.status, 400) << body.substr(0, 50);
    return Json::parse(reply.body)["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(post(""), HasSubstr("no body"));
  EXPECT_THAT(post("{"), HasSubstr("byte 2"));
  EXPECT_THAT(post("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(post("{\"prompt\": \"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(post("{\"prompt\":" + std::string(100000, '[')), HasSubstr("nests deeper"));
  EXPECT_THAT(post("{\"max_tokens\": 1e999}"), HasSubstr("JSON"));
}

// JSON in strings of the body has the same depth limit as the body.
TEST_F(Api, JsonInStringsIsLimited) {
  const int levels = 200'000;
  std::string objects, arrays(levels, '[');
  for (int i = 0; i < levels; ++i) objects += "{\"a\":";
  objects += "1" + std::string(levels, '}');
  arrays += std::string(levels, ']');
  for (const std::string& text : {objects, arrays}) {
    const Json call = {{"id", "1"}, {"function", {{"name", "f"}, {"arguments", text}}}};
    const Json turn = {{"role", "assistant"}, {"tool_calls", Json::array({call})}};
    const Json messages = {{"messages", Json::array({turn})}};
    server().ExpectError("/v1/chat/completions", messages, 400, "128 levels");
    server().ExpectError("/tokenize", messages, 400, "128 levels");
    const Json item = {
        {"type", "function_call"}, {"call_id", "1"}, {"name", "f"}, {"arguments", text}};
    server().ExpectError("/v1/responses", {{"input", Json::array({item})}}, 400, "128 levels");
    server().ExpectError("/v1/completions", {{"prompt", "x"}, {"guided_json", text}}, 400,
                         "128 levels");
    server().ExpectError("/v1/completions",
                         {{"prompt", "x"}, {"structured_outputs", {{"json", text}}}}, 400,
                         "128 levels");
  }
}

TEST_F(Api, RoutesMethodsAndTypes) {
  EXPECT_EQ(server().Get("/nowhere").status, 404);
  const Reply wrong = server().Get("/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(
      Call(server().port(), "POST", "/v1/completions", "{}", {"Content-Type: text/plain"}).status,
      415);
  EXPECT_EQ(server().Get("/health?verbose=1").status, 200);
  const Reply head = Call(server().port(), "HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  EXPECT_NE(head.headers.at("content-length"), "0");
}

}  // namespace
}  // namespace litecache::testing

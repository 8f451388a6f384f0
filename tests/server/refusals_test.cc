// Requests that are refused, and what their errors name.
#include "server/api_fixture.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

class Refusals : public Api {};

TEST_F(Refusals, WhatIsNotSupportedIsRefusedByName) {
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

TEST_F(Refusals, WrongValuesAreNamed) {
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
  EXPECT_EQ(param({{"messages", Json::array({Json{{"role", "user"}, {"content", nullptr}}})}}),
            "messages[0].content");
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
  // The words by which clients recognize that the conversation is too long, where tokens are
  // counted, where counting stops, and where it does not begin.
  for (const size_t bytes : {5000, 9000, 1'000'000}) {
    server().ExpectError("/v1/completions", {{"prompt", std::string(bytes, 'x')}}, 400,
                         "this model's maximum context length is 1024 tokens: ");
  }
  server().ExpectError("/v1/completions", {{"prompt", {1, 2, 99999}}}, 400, "vocabulary");
  server().ExpectError("/v1/completions", {{"prompt", Json::array()}}, 400, "prompt");
  server().ExpectError("/v1/completions", {{"max_tokens", 5}}, 400, "prompt");
}

TEST_F(Refusals, BodiesThatAreNoJson) {
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
TEST_F(Refusals, JsonInStringsIsLimited) {
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

TEST_F(Refusals, RoutesMethodsAndTypes) {
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

// Answers with a given format, and function calls: parsing of models' output, and the endpoints.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "server/api/tool_calls.h"
#include "server/test_server.h"
#include "source_directory.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using server::DetectToolFormat;
using server::ToolCallParser;
using server::ToolEvent;
using server::ToolFormat;
using ::testing::HasSubstr;

struct Parsed {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // names and arguments
  bool operator==(const Parsed&) const = default;
};

// Parses an answer in pieces of random sizes.
Parsed Parse(ToolFormat format, const std::string& answer, std::mt19937_64& random,
             size_t longest = 12, int most = 100) {
  ToolCallParser parser(format, {"get_weather", "add"}, most);
  std::vector<ToolEvent> events;
  for (size_t at = 0; at < answer.size();) {
    const size_t size = 1 + random() % longest;
    parser.Add(std::string_view(answer).substr(at, size), &events);
    at += size;
  }
  parser.Finish(&events);
  Parsed parsed;
  for (const ToolEvent& event : events) {
    if (event.kind == ToolEvent::kText) {
      parsed.text += event.text;
    } else if (event.kind == ToolEvent::kBegin) {
      parsed.calls.emplace_back(event.text, "");
    } else {
      EXPECT_FALSE(parsed.calls.empty());
      parsed.calls.back().second += event.text;
    }
  }
  return parsed;
}

class ToolCalls : public ::testing::Test {
 protected:
  void Expect(ToolFormat format, const std::string& answer, const Parsed& expected,
              int most = 100) {
    for (int i = 0; i < 20; ++i) {
      const Parsed parsed = Parse(format, answer, random_, i == 0 ? 1 : 1 + i, most);
      EXPECT_EQ(parsed.text, expected.text) << answer;
      EXPECT_EQ(parsed.calls, expected.calls) << answer;
    }
  }
  std::mt19937_64 random_ = TestRandom(11);
};

TEST_F(ToolCalls, AsQwenWritesThem) {
  const auto hermes = ToolFormat::kHermes;
  Expect(hermes, "Hello <world>, a < b", {"Hello <world>, a < b", {}});
  Expect(hermes,
         "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
         "\"Paris\"}}\n</tool_call>",
         {"", {{"get_weather", "{\"city\": \"Paris\"}"}}});
  Expect(hermes,
         "I will look.\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
         "\"}</tool_call>{\\\"\"}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"a\": [1, {}]}, "
         "\"name\": \"add\"}\n</tool_call>\n",
         {"I will look.",
          {{"get_weather", "{\"city\": \"}</tool_call>{\\\"\"}"}, {"add", "{\"a\": [1, {}]}"}}});
  Expect(hermes, "<tool_call>{\"name\": \"add\"}</tool_call> done", {" done", {{"add", "{}"}}});
  Expect(hermes, "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
         {"", {{"add", "{\"a\": 1}"}}});
  // Cut off.
  Expect(hermes, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1",
         {"", {{"add", "{\"a\": 1"}}});
  Expect(hermes, "x <tool_call>\n{\"na", {"x<tool_call>\n{\"na", {}});
  Expect(hermes, "x <tool_", {"x <tool_", {}});
  // Not a call.
  Expect(hermes, "<tool_call> is a tag", {"<tool_call> is a tag", {}});
  // At most one.
  Expect(
      hermes,
      "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"add\", "
      "\"arguments\": {\"b\": 2}}</tool_call>",
      {"", {{"add", "{}"}}}, 1);
}

TEST_F(ToolCalls, AsLlamaWritesThem) {
  const auto llama = ToolFormat::kLlama;
  const Parsed call = {"", {{"get_weather", "{\"city\": \"Pa}ris\"}"}}};
  Expect(llama, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Pa}ris\"}}", call);
  Expect(llama,
         "\n<|python_tag|>{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": "
         "{\"city\": \"Pa}ris\"}}",
         call);
  Expect(llama,
         "{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"add\", \"parameters\": {\"a\": 2}}",
         {"", {{"add", "{}"}, {"add", "{\"a\": 2}"}}});
  // JSON that is an answer, and text.
  Expect(llama, "{\"name\": \"Bob\", \"parameters\": {}}",
         {"{\"name\": \"Bob\", \"parameters\": {}}", {}});
  Expect(llama, "{\"a\": [1, 2], \"b\": null} and more",
         {"{\"a\": [1, 2], \"b\": null} and more", {}});
  Expect(llama, "{no", {"{no", {}});
  Expect(llama, " So {\"name\": \"add\"}", {" So {\"name\": \"add\"}", {}});
  Expect(llama, "", {"", {}});
}

TEST_F(ToolCalls, ArgumentsComeAsTheyAreWritten) {
  ToolCallParser parser(ToolFormat::kLlama, {"add"}, 1);
  std::vector<ToolEvent> events;
  parser.Add("{\"name\": \"add\", \"parameters\": {\"a\": 1", &events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text, "add");
  EXPECT_EQ(events[1].text, "{\"a\": 1");
}

TEST_F(ToolCalls, TheTemplateTellsTheForm) {
  const auto read = [](const std::string& name) {
    std::ifstream file(SourceDirectory() / "tests/tokenizer_jinja/data" / name);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  EXPECT_EQ(DetectToolFormat(read("qwen2_5.jinja")), ToolFormat::kHermes);
  EXPECT_EQ(DetectToolFormat(read("qwen3.jinja")), ToolFormat::kHermes);
  EXPECT_EQ(DetectToolFormat(read("llama_style.jinja")), ToolFormat::kLlama);
  EXPECT_EQ(DetectToolFormat("{% for m in messages %}{% endfor %}"), ToolFormat::kNone);
}

// Minimal templates sent with requests.
constexpr const char* kHermesTemplate =
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}"
    "<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}{{ eos_token }}{% endfor %}<|assistant|>";

class Forms : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    TestServer::Options options;
    options.limits.trust_chat_template = true;
    server_ = new TestServer(options);
  }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  TestServer& server() { return *server_; }

  // Bounded, so that a random model comes to an end.
  static Json Schema() {
    return Json::parse(R"({"type": "object", "required": ["kind", "size"], "properties": {
        "kind": {"enum": ["cat", "dog"]}, "size": {"type": "integer", "minimum": 1, "maximum": 99},
        "names": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 6}}},
        "additionalProperties": false})");
  }
  static Json Format(const Json& schema) {
    return {{"type", "json_schema"},
            {"json_schema", {{"name", "pet"}, {"strict", true}, {"schema", schema}}}};
  }
  static void ExpectPet(const std::string& text) {
    const Json pet = Json::parse(text, nullptr, false);
    ASSERT_TRUE(pet.is_object()) << text;
    EXPECT_THAT(pet["kind"], ::testing::AnyOf("cat", "dog"));
    EXPECT_TRUE(pet["size"].is_number_integer() && pet["size"] >= 1 && pet["size"] <= 99) << text;
    for (const Json& name : pet.value("names", Json::array())) EXPECT_TRUE(name.is_string());
    EXPECT_LE(pet.value("names", Json::array()).size(), 2u);
    EXPECT_LE(pet.size(), 3u);
  }
  static Json Tools() {
    return Json::array(
        {Json{{"type", "function"}, {"function", {{"name", "keep"}, {"parameters", Schema()}}}},
         Json{{"type", "function"}, {"function", {{"name", "ping"}}}}});
  }

 private:
  static TestServer* server_;
};

TestServer* Forms::server_ = nullptr;

TEST_F(Forms, AnswersFollowTheSchema) {
  for (const Json& sampling :
       {Json{{"temperature", 0}}, Json{{"temperature", 1.5}, {"n", 8}},
        Json{{"temperature", 1}, {"top_k", 3}, {"n", 4}}, Json{{"temperature", 2}, {"top_p", 0.5}},
        Json{{"temperature", 1}, {"min_p", 0.3}, {"repetition_penalty", 1.3}}}) {
    Json body = ChatBody("a pet", {{"max_tokens", 900}, {"response_format", Format(Schema())}});
    body.update(sampling);
    const Json answer = server().Ask("/v1/chat/completions", body);
    for (const Json& choice : answer["choices"]) {
      EXPECT_EQ(choice["finish_reason"], "stop");
      ExpectPet(choice["message"]["content"].get<std::string>());
    }
    // The same in pieces.
    std::string text;
    for (const Json& event : server().Stream("/v1/chat/completions", body)) {
      for (const Json& choice : event["choices"]) {
        if (choice["index"] == 0) text += choice["delta"].value("content", "");
      }
    }
    ExpectPet(text);
  }
}

TEST_F(Forms, EveryEndpointAndName) {
  const Json completion = {{"prompt", "x"}, {"max_tokens", 900}, {"temperature", 1}};
  for (const Json& field : {Json{{"response_format", Format(Schema())}},
                            Json{{"guided_json", Schema()}}, Json{{"guided_json", Schema().dump()}},
                            Json{{"structured_outputs", {{"json", Schema()}}}}}) {
    Json body = completion;
    body.update(field);
    ExpectPet(server().Ask("/v1/completions", body)["choices"][0]["text"].get<std::string>());
  }
  const Json format = {{"type", "json_schema"}, {"name", "pet"}, {"schema", Schema()}};
  const Json response =
      server().Ask("/v1/responses",
                   {{"input", "x"}, {"max_output_tokens", 900}, {"text", {{"format", format}}}});
  ExpectPet(response["output"][0]["content"][0]["text"].get<std::string>());
  EXPECT_EQ(response["text"]["format"], format);
}

TEST_F(Forms, AnObjectIsBegun) {
  const Json answer = server().Ask(
      "/v1/chat/completions",
      ChatBody("x", {{"max_tokens", 60}, {"response_format", {{"type", "json_object"}}}}));
  const auto text = answer["choices"][0]["message"]["content"].get<std::string>();
  const size_t begin = text.find_first_not_of(" \n");
  ASSERT_NE(begin, std::string::npos);
  EXPECT_EQ(text[begin], '{');
  if (answer["choices"][0]["finish_reason"] == "stop") {
    EXPECT_TRUE(Json::parse(text, nullptr, false).is_object()) << text;
  }
}

TEST_F(Forms, WrongFormsAreNamed) {
  const auto expect = [&](const Json& more, const std::string& param, const std::string& part) {
    const Json error = server().ExpectError("/v1/chat/completions", ChatBody("x", more), 400, part);
    EXPECT_EQ(error["param"], param) << more;
  };
  const std::string schema = "response_format.json_schema.schema";
  expect({{"response_format", {{"type", "yaml"}}}}, "response_format.type", "json_schema");
  expect({{"response_format", {{"type", "json_schema"}}}}, "response_format.json_schema",
         "missing");
  expect({{"response_format", Format({{"type", "object"}, {"properties", {{"a", {{"not", 1}}}}}})}},
         schema, "#/properties/a: the keyword 'not'");
  expect({{"response_format", Format({{"type", "thing"}})}}, schema, "#/type");
  expect({{"guided_json", "{"}}, "guided_json", "schema");
  expect({{"guided_json", Schema()}, {"response_format", Format(Schema())}}, schema, "twice");
  expect({{"structured_outputs", {{"regex", "a"}}}}, "structured_outputs.regex", "");
  // Tools.
  expect({{"tools", Tools()}}, "tools", "template");
  expect({{"tools", Json::array({Json{{"type", "web"}}})}}, "tools[0].type", "functions");
  expect({{"tools", Json::array({Json{{"type", "function"}, {"function", {{"name", "a b"}}}}})}},
         "tools[0].function.name", "letters");
  expect({{"tool_choice", "required"}}, "tool_choice", "tools");
  expect(
      {{"tools", Tools()}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}}},
      "tool_choice", "no function 'f'");
  expect({{"tools",
           Json::array({Json{{"type", "function"},
                             {"function", {{"name", "f"}, {"parameters", {{"type", "thing"}}}}}}})},
          {"tool_choice", "required"}},
         "tools", "#/type");
}

TEST_F(Forms, RequiredCalls) {
  for (const char* chat_template : {kHermesTemplate, ""}) {
    Json body = ChatBody("x", {{"max_tokens", 600},
                               {"temperature", 1.2},
                               {"n", 3},
                               {"tools", Tools()},
                               {"tool_choice", "required"}});
    if (*chat_template != 0) body["chat_template"] = chat_template;
    const Json answer = server().Ask("/v1/chat/completions", body);
    for (const Json& choice : answer["choices"]) {
      EXPECT_EQ(choice["finish_reason"], "tool_calls");
      EXPECT_TRUE(choice["message"]["content"].is_null());
      ASSERT_GE(choice["message"]["tool_calls"].size(), 1u);
      for (const Json& call : choice["message"]["tool_calls"]) {
        EXPECT_EQ(call["type"], "function");
        EXPECT_THAT(call["id"].get<std::string>(), HasSubstr("call_"));
        if (call["function"]["name"] == "keep") {
          ExpectPet(call["function"]["arguments"].get<std::string>());
        } else {
          EXPECT_EQ(call["function"]["name"], "ping");
          EXPECT_EQ(call["function"]["arguments"], "{}");
        }
      }
    }
    body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "keep"}}}};
    body["n"] = 1;
    body["seed"] = 5;
    const Json named = server().Ask("/v1/chat/completions", body)["choices"][0]["message"];
    ASSERT_EQ(named["tool_calls"].size(), 1u);
    // Streamed: the name first, then the arguments in pieces.
    std::string name, arguments, finish, id;
    for (const Json& event : server().Stream("/v1/chat/completions", body)) {
      for (const Json& choice : event["choices"]) {
        if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
        for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
          EXPECT_EQ(call["index"], 0);
          if (call.contains("id")) {
            EXPECT_EQ(id, "");
            id = call["id"];
            name = call["function"]["name"];
          }
          arguments += call["function"]["arguments"].get<std::string>();
        }
      }
    }
    EXPECT_EQ(name, "keep");
    EXPECT_EQ(finish, "tool_calls");
    EXPECT_EQ(Json(arguments), named["tool_calls"][0]["function"]["arguments"]);
  }
}

TEST_F(Forms, TheTemplateSeesTheTools) {
  const auto tokens = [&](const Json& more) {
    Json body = ChatBody("x", {{"max_tokens", 1}, {"chat_template", kHermesTemplate}});
    body.update(more);
    return server().Ask("/v1/chat/completions", body)["usage"]["prompt_tokens"].get<int>();
  };
  EXPECT_GT(tokens({{"tools", Tools()}}), tokens(Json::object()) + 100);
  EXPECT_EQ(tokens({{"tools", Tools()}, {"tool_choice", "none"}}), tokens(Json::object()));
}

TEST_F(Forms, CallsOfResponses) {
  Json tools =
      Json::array({Json{{"type", "function"}, {"name", "keep"}, {"parameters", Schema()}}});
  Json body = {{"input", "x"}, {"max_output_tokens", 600}, {"temperature", 1.2},
               {"seed", 3},    {"tools", tools},           {"tool_choice", "required"}};
  const Json answer = server().Ask("/v1/responses", body);
  ASSERT_EQ(answer["output"].size(), 1u);
  const Json call = answer["output"][0];
  EXPECT_EQ(call["type"], "function_call");
  EXPECT_EQ(call["name"], "keep");
  ExpectPet(call["arguments"].get<std::string>());
  EXPECT_EQ(answer["tools"], tools);
  std::string arguments, done;
  for (const Json& event : server().Stream("/v1/responses", body)) {
    if (event["type"] == "response.function_call_arguments.delta") {
      arguments += event["delta"].get<std::string>();
    }
    if (event["type"] == "response.function_call_arguments.done") done = event["arguments"];
  }
  EXPECT_EQ(Json(arguments), call["arguments"]);
  EXPECT_EQ(done, arguments);
  // The result is part of the next turn.
  body["tool_choice"] = "none";
  body["max_output_tokens"] = 2;
  body["input"] = Json::array(
      {Json{{"role", "user"}, {"content", "x"}}, call,
       Json{{"type", "function_call_output"}, {"call_id", call["call_id"]}, {"output", "done"}}});
  EXPECT_EQ(server().Ask("/v1/responses", body)["output"][0]["type"], "message");
}

}  // namespace
}  // namespace litecache::testing

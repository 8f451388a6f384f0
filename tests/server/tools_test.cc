// Answers with a given format, and function calls: what the endpoints make of them.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>

#include "server/call_templates.h"
#include "server/test_server.h"
#include "source_directory.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

// Minimal templates sent with requests.
constexpr const char* kHermesTemplate =
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}"
    "<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}{{ eos_token }}{% endfor %}<|assistant|>";

class Forms : public SharedServerTest {
 protected:
  static void SetUpTestSuite() {
    TestServer::Options options;
    options.endless = true;  // a prompt that explains tools is long
    options.limits.trust_chat_template = true;
    Start(options);
  }

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
};

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
  // The second and third are llama.cpp's, and what Hugging Face's client makes of the first.
  for (const Json& field :
       {Json{{"response_format", Format(Schema())}},
        Json{{"response_format", {{"type", "json_object"}, {"schema", Schema()}}}},
        Json{{"response_format", {{"type", "json_object"}, {"value", Schema()}}}},
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
  expect({{"response_format", {{"type", "json_object"}, {"schema", {{"type", "thing"}}}}}},
         "response_format.schema", "#/type");
  expect({{"response_format", {{"type", "json_schema"}}}}, "response_format.json_schema",
         "missing");
  expect({{"response_format", Format({{"type", "object"}, {"properties", {{"a", {{"not", 1}}}}}})}},
         schema, "#/properties/a: the keyword 'not'");
  expect({{"response_format", Format({{"type", "thing"}})}}, schema, "#/type");
  expect({{"guided_json", "{"}}, "guided_json", "schema");
  expect({{"guided_json", Schema()}, {"response_format", Format(Schema())}}, schema, "twice");
  expect({{"structured_outputs", {{"structural_tag", "a"}}}}, "structured_outputs.structural_tag",
         "");
  // Tools.
  expect({{"tools", Json::array({Json{{"type", "web"}}})}}, "tools[0].type", "'function'");
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
    body["tool_choice"].erase("type");  // which Hugging Face's client and vLLM leave out
    EXPECT_EQ(server().Ask("/v1/chat/completions",
                           body)["choices"][0]["message"]["tool_calls"][0]["function"],
              named["tool_calls"][0]["function"]);
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

// The prompt as text, of a conversation in which a function was called.
TEST_F(Forms, ATemplateWithoutToolsIsToldOfThem) {
  const Json call = {{"id", "1"},
                     {"type", "function"},
                     {"function", {{"name", "ping"}, {"arguments", "{\"a\": 1}"}}}};
  const Json messages = Json::array({Json{{"role", "user"}, {"content", "x"}},
                                     Json{{"role", "assistant"}, {"tool_calls", {call, call}}},
                                     Json{{"role", "tool"}, {"content", "r1"}},
                                     Json{{"role", "tool"}, {"content", "r2"}},
                                     Json{{"role", "user"}, {"content", "go"}}});
  const auto prompt = [&](const Json& more) {
    Json body = {{"messages", messages}};
    body.update(more);
    return server().Ask("/apply-template", body)["prompt"].get<std::string>();
  };
  const std::string text =
      "<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"a\":1}}\n</tool_call>";
  const std::string turns =
      "<|assistant|>" + text + "\n" + text +
      "</s><|user|><tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n"
      "</tool_response>\ngo</s><|assistant|>";
  EXPECT_EQ(prompt(Json::object()), "<s><|user|>x</s>" + turns);
  EXPECT_EQ(prompt({{"tools", Tools()}, {"tool_choice", "none"}}), "<s><|user|>x</s>" + turns);
  const std::string told = prompt({{"tools", Tools()}});
  EXPECT_THAT(told, HasSubstr("{\"name\":\"ping\"}\n</tools>"));
  EXPECT_THAT(told, ::testing::EndsWith("\n\nx</s>" + turns));
  // A template with a place for the system's words gets them there.
  const char* system =
      "{% for m in messages %}{% if m.role == 'system' %}S{% endif %}{{ m.content }};{% endfor %}";
  EXPECT_THAT(prompt({{"tools", Tools()}, {"chat_template", system}}),
              ::testing::StartsWith("SYou"));
}

TEST_F(Forms, ATextWithToolsIsAnswered) {
  const Json answer =
      server().Ask("/v1/chat/completions", ChatBody("x", {{"max_tokens", 4}, {"tools", Tools()}}));
  EXPECT_TRUE(answer["choices"][0]["message"]["content"].is_string());
}

TEST_F(Forms, MistralsTemplateGetsIdsThatItTakes) {
  std::ifstream file(SourceDirectory() / "tests/tokenizer_jinja/data/mistral_nemo.jinja");
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  const Json call = {{"id", "call_0123456789"},
                     {"type", "function"},
                     {"function", {{"name", "ping"}, {"arguments", "{}"}}}};
  const std::string prompt =
      server().Ask("/apply-template",
                   {{"chat_template", source},
                    {"tools", Tools()},
                    {"messages", Json::array({Json{{"role", "user"}, {"content", "x"}},
                                              Json{{"role", "assistant"}, {"tool_calls", {call}}},
                                              Json{{"role", "tool"},
                                                   {"tool_call_id", "call_0123456789"},
                                                   {"content", "r"}}})}})["prompt"];
  EXPECT_THAT(prompt, HasSubstr("[AVAILABLE_TOOLS]["));
  const size_t id = prompt.find("\"id\": \""), result = prompt.find("\"call_id\": \"");
  ASSERT_NE(id, std::string::npos);
  ASSERT_NE(result, std::string::npos);
  EXPECT_EQ(prompt.substr(id + 7, 9), prompt.substr(result + 12, 9));
}

TEST_F(Forms, ATemplateWithoutCallsGetsThemAsText) {
  const std::string source =
      "{% if tools %}<|tool_call|>{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content "
      "}}{% endfor %}";
  const auto call = [](const char* id, const char* arguments) {
    return Json{{"id", id},
                {"type", "function"},
                {"function", {{"name", "ping"}, {"arguments", arguments}}}};
  };
  const Json messages =
      Json::array({Json{{"role", "user"}, {"content", "x"}},
                   Json{{"role", "assistant"},
                        {"content", "I look."},
                        {"tool_calls", {call("a", "{}"), call("b", "{\"n\": 1}")}}},
                   Json{{"role", "tool"}, {"tool_call_id", "a"}, {"content", "r"}}});
  const Json prompt = server().Ask("/apply-template",
                                   {{"chat_template", source}, {"messages", messages}})["prompt"];
  EXPECT_EQ(prompt,
            "<|user|>x<|assistant|>I look.\n<|tool_call|>[{\"name\": \"ping\", \"arguments\": {}}, "
            "{\"name\": \"ping\", \"arguments\": {\"n\":1}}]<|tool|>r");
}

TEST_F(Forms, ApertusTemplatesGetFunctionsInEitherPlace) {
  const auto prompt = [&](const std::string& tool) {
    const std::string source = "{% for tool in tools %}{{ '// ' + " + tool + ".description + " +
                               tool + ".name }};{% endfor %}<|tools_prefix|><|tools_suffix|>";
    return server()
        .Ask("/apply-template",
             {{"chat_template", source},
              {"tools", Tools()},
              {"messages", Json::array({Json{{"role", "user"}, {"content", "x"}}})}})["prompt"]
        .get<std::string>();
  };
  EXPECT_THAT(prompt("tool"), HasSubstr("// ping;"));
  EXPECT_EQ(prompt("tool"), prompt("tool.function"));
}

TEST_F(Forms, GemmasTemplateGetsResultsWithTheirCalls) {
  const auto call = [](const char* id, const char* name) {
    return Json{
        {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", "{}"}}}};
  };
  const auto result = [](const char* id, const char* text) {
    return Json{{"role", "tool"}, {"tool_call_id", id}, {"content", text}};
  };
  Json messages = Json::array({Json{{"role", "user"}, {"content", "x"}},
                               Json{{"role", "assistant"},
                                    {"content", "I look."},
                                    {"tool_calls", {call("a", "ping"), call("b", "keep")}}},
                               result("b", "{\"n\": [1, true]}"), result("a", "[2]")});
  const auto prompt = [&] {
    return server()
        .Ask("/apply-template",
             {{"chat_template", GemmaTemplate()}, {"messages", messages}})["prompt"]
        .get<std::string>();
  };
  const std::string calls =
      "<|turn>user\nx<turn|>\n<|turn>assistant\nI look.<turn|>\n<|turn>assistant\n";
  const std::string results =
      "<|tool_call>call:ping{}<tool_call|><|tool_call>call:keep{}<tool_call|>"
      "<|tool_response>response:keep{n:[1,true]}<tool_response|>"
      "<|tool_response>response:ping<|\"|>[2]<|\"|><tool_response|>";
  EXPECT_EQ(prompt(), calls + results + "<|turn>model\n");
  messages.push_back({{"role", "assistant"}, {"content", "Done."}});
  messages.push_back({{"role", "user"}, {"content", "y"}});
  EXPECT_THAT(prompt(), ::testing::EndsWith("Done." + results +
                                            "<turn|>\n<|turn>user\ny<turn|>\n"
                                            "<|turn>model\n"));
  // A further call is a message of its own.
  messages[4] = {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call("c", "ping")}}};
  EXPECT_THAT(prompt(), HasSubstr(results + "<|turn>assistant\n<|tool_call>call:ping{}<tool_call|>"
                                            "<turn|>\n<|turn>user\ny"));
}

TEST_F(Forms, CallsOfResponses) {
  Json tools =
      Json::array({Json{{"type", "function"}, {"name", "keep"}, {"parameters", Schema()}}});
  Json body = {
      {"input", "x"},   {"max_output_tokens", 600},  {"temperature", 1.2},          {"seed", 3},
      {"tools", tools}, {"tool_choice", "required"}, {"parallel_tool_calls", false}};
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

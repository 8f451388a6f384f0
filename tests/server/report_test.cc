// What answers report beside their text (log-probabilities of the prompt, token ids), and the
// fields that bound an answer.
#include <gmock/gmock.h>

#include "server/test_server.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

class Report : public SharedServerTest {
 protected:
  Json Complete(const Json& more) {
    Json body = {{"prompt", "the cat sat"}, {"temperature", 0}};
    body.update(more);
    return server().Ask("/v1/completions", body);
  }
  std::vector<int32_t> Encode(const std::string& text, bool special = true) {
    return server().engine().tokenizer().Encode(text, {.add_special_tokens = special});
  }
  // From the second token on, asked of the engine.
  std::vector<PromptLogprob> Given(std::vector<int32_t> prompt, int count) {
    Request request{.prompt = std::move(prompt), .generate = false};
    request.prompt_logprobs = count;
    const auto handle = server().engine().Submit(std::move(request));
    std::vector<PromptLogprob> all;
    while (const auto chunk = handle->Next()) {
      all.insert(all.end(), chunk->prompt_logprobs.begin(), chunk->prompt_logprobs.end());
    }
    return all;
  }
};

TEST_F(Report, AnEchoHasThePromptsLogprobs) {
  const std::vector<int32_t> prompt = Encode("the cat sat");
  const auto given = Given(prompt, 2);
  for (const int max_tokens : {0, 4}) {
    const Json body = {{"echo", true}, {"logprobs", 2}, {"max_tokens", max_tokens}, {"n", 2}};
    const Json answer = Complete(body);
    EXPECT_EQ(answer["usage"]["completion_tokens"], 2 * max_tokens);
    ASSERT_EQ(answer["choices"].size(), 2u);
    for (const Json& choice : answer["choices"]) {
      EXPECT_EQ(choice["finish_reason"], "length");
      const auto text = choice["text"].get<std::string>();
      EXPECT_THAT(text, ::testing::StartsWith("the cat sat"));
      if (max_tokens == 0) {
        EXPECT_EQ(text, "the cat sat");
      }
      const Json& logprobs = choice["logprobs"];
      const size_t count = prompt.size() + static_cast<size_t>(max_tokens);
      for (const char* field : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
        ASSERT_EQ(logprobs[field].size(), count) << field;
      }
      EXPECT_EQ(logprobs["tokens"][0], "<s>");
      EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
      EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
      for (size_t i = 1; i < prompt.size(); ++i) {
        EXPECT_EQ(logprobs["token_logprobs"][i], given[i - 1].token.logprob);
        const Json& top = logprobs["top_logprobs"][i];
        EXPECT_EQ(top[logprobs["tokens"][i].get<std::string>()], given[i - 1].token.logprob);
        float best = -1e9f;
        for (const Json& one : top) best = std::max(best, one.get<float>());
        EXPECT_EQ(best, given[i - 1].top[0].logprob);
        // <s> is no part of the text.
        const auto offset = logprobs["text_offset"][i].get<size_t>();
        const auto token = logprobs["tokens"][i].get<std::string>();
        EXPECT_EQ(text.substr(offset, token.size()), token);
      }
    }
    // Streamed: the same entries.
    std::vector<Json> tokens(2), values(2);
    std::vector<std::string> texts(2);
    Json streamed = {{"prompt", "the cat sat"}, {"temperature", 0}};
    streamed.update(body);
    for (const Json& event : server().Stream("/v1/completions", streamed)) {
      for (const Json& choice : event["choices"]) {
        const auto index = choice["index"].get<size_t>();
        texts[index] += choice["text"].get<std::string>();
        if (choice["logprobs"].is_null()) continue;
        for (const Json& token : choice["logprobs"]["tokens"]) tokens[index].push_back(token);
        for (const Json& one : choice["logprobs"]["token_logprobs"]) values[index].push_back(one);
      }
    }
    for (size_t i = 0; i < 2; ++i) {
      const Json& choice = answer["choices"][i];
      EXPECT_EQ(choice["text"], texts[i]);
      EXPECT_EQ(choice["logprobs"]["tokens"], tokens[i]);
      EXPECT_EQ(choice["logprobs"]["token_logprobs"], values[i]);
    }
  }
}

TEST_F(Report, SeveralPromptsHaveTheirOwn) {
  const Json both = Complete(
      {{"prompt", {"the cat", "a mouse ran"}}, {"echo", true}, {"logprobs", 0}, {"max_tokens", 1}});
  for (size_t i = 0; i < 2; ++i) {
    const Json alone = Complete({{"prompt", i == 0 ? "the cat" : "a mouse ran"},
                                 {"echo", true},
                                 {"logprobs", 0},
                                 {"max_tokens", 1}});
    EXPECT_EQ(both["choices"][i]["logprobs"]["tokens"], alone["choices"][0]["logprobs"]["tokens"]);
  }
}

TEST_F(Report, PromptLogprobsAsVllmWritesThem) {
  const std::vector<int32_t> prompt = Encode("the cat sat");
  const auto given = Given(prompt, 3);
  const auto expect = [&](const Json& list) {
    ASSERT_EQ(list.size(), prompt.size());
    EXPECT_TRUE(list[0].is_null());
    for (size_t i = 1; i < prompt.size(); ++i) {
      const PromptLogprob& one = given[i - 1];
      const Json& own = list[i][std::to_string(prompt[i])];
      EXPECT_EQ(own["logprob"], one.token.logprob);
      EXPECT_EQ(own["rank"], one.rank);
      EXPECT_TRUE(own["decoded_token"].is_string());
      EXPECT_EQ(list[i][std::to_string(one.top[0].token)]["rank"], 1);
      EXPECT_EQ(list[i].size(), one.rank <= 3 ? 3u : 4u);
    }
  };
  // More log-probabilities of the echo than of this, and the other way around.
  expect(Complete({{"prompt_logprobs", 3}, {"max_tokens", 1}})["choices"][0]["prompt_logprobs"]);
  const Json echo =
      Complete({{"prompt_logprobs", 3}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}});
  expect(echo["choices"][0]["prompt_logprobs"]);
  EXPECT_LE(echo["choices"][0]["logprobs"]["top_logprobs"][1].size(), 2u);
  // A chat has one prompt, and says it once.
  const Json chat = server().Ask("/v1/chat/completions",
                                 ChatBody("hi", {{"prompt_logprobs", 0}, {"max_tokens", 1}}));
  EXPECT_EQ(chat["prompt_logprobs"].size(), chat["usage"]["prompt_tokens"].get<size_t>());
  EXPECT_FALSE(chat["choices"][0].contains("prompt_logprobs"));
  server().ExpectError("/v1/completions",
                       {{"prompt", "x"}, {"prompt_logprobs", 1}, {"stream", true}}, 400, "streams");
}

TEST_F(Report, TokenIdsOnRequest) {
  const std::vector<int32_t> prompt = Encode("the cat sat");
  const Json answer = Complete({{"return_token_ids", true}, {"max_tokens", 6}});
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["prompt_token_ids"], prompt);
  EXPECT_EQ(choice["token_ids"].size(), answer["usage"]["completion_tokens"].get<size_t>());
  Json ids = Json::array();
  const auto events = server().Stream("/v1/completions", {{"prompt", "the cat sat"},
                                                          {"temperature", 0},
                                                          {"return_token_ids", true},
                                                          {"max_tokens", 6}});
  for (const Json& event : events) {
    for (const Json& id : event["choices"][0]["token_ids"]) ids.push_back(id);
  }
  EXPECT_EQ(ids, choice["token_ids"]);
  EXPECT_EQ(events[0]["choices"][0]["prompt_token_ids"], prompt);
  EXPECT_FALSE(events[1]["choices"][0].contains("prompt_token_ids"));

  const Json body =
      ChatBody("hi", {{"return_token_ids", true}, {"max_tokens", 5}, {"temperature", 0}, {"n", 2}});
  const Json chat = server().Ask("/v1/chat/completions", body);
  EXPECT_EQ(chat["prompt_token_ids"].size(), chat["usage"]["prompt_tokens"].get<size_t>());
  std::vector<Json> streamed(2, Json::array());
  int prompts = 0;
  for (const Json& event : server().Stream("/v1/chat/completions", body)) {
    prompts += event.contains("prompt_token_ids") ? 1 : 0;
    for (const Json& id : event["choices"][0]["token_ids"]) {
      streamed[event["choices"][0]["index"].get<size_t>()].push_back(id);
    }
  }
  EXPECT_EQ(prompts, 1);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(chat["choices"][i]["token_ids"], streamed[i]);
  EXPECT_FALSE(Complete({{"max_tokens", 1}})["choices"][0].contains("token_ids"));
}

TEST_F(Report, APromptCanBeCutAtItsBeginning) {
  const std::vector<int32_t> prompt = Encode("the cat sat on the mat");
  const auto left = [&](const Json& more) {
    return Complete({{"prompt", "the cat sat on the mat"},
                     {"max_tokens", 1},
                     {"return_token_ids", true},
                     {"truncate_prompt_tokens", more}})["choices"][0]["prompt_token_ids"];
  };
  EXPECT_EQ(left(5), std::vector<int32_t>(prompt.end() - 5, prompt.end()));
  EXPECT_EQ(left(5000), prompt);
  EXPECT_EQ(left(-1), prompt);
  const std::vector<int32_t> many(3000, 50);
  const Json cut = Complete({{"prompt", many}, {"max_tokens", 3}, {"truncate_prompt_tokens", -1}});
  EXPECT_EQ(cut["usage"]["prompt_tokens"], 1024 - 3);
  const Json chat = server().Ask(
      "/v1/chat/completions", ChatBody("hi", {{"truncate_prompt_tokens", 2}, {"max_tokens", 1}}));
  EXPECT_EQ(chat["usage"]["prompt_tokens"], 2);
  server().ExpectError("/v1/completions", {{"prompt", "x"}, {"truncate_prompt_tokens", 0}}, 400,
                       "truncate_prompt_tokens");
}

TEST_F(Report, FieldsThatBoundAnAnswer) {
  const Json free = Complete({{"max_tokens", 30}, {"return_token_ids", true}});
  const auto text = free["choices"][0]["text"].get<std::string>();
  const Json& ids = free["choices"][0]["token_ids"];
  // An end that would come early does not, and then does.
  const Json stop = {{"max_tokens", 30}, {"stop_token_ids", {ids[2]}}, {"return_token_ids", true}};
  EXPECT_LE(Complete(stop)["usage"]["completion_tokens"], 3);
  Json later = stop;
  later["min_tokens"] = 12;
  const Json bounded = Complete(later);
  EXPECT_GE(bounded["usage"]["completion_tokens"], 12);
  for (size_t i = 0; i < 12; ++i) EXPECT_NE(bounded["choices"][0]["token_ids"][i], ids[2]);
  // Stop strings as part of the text.
  std::string part;
  for (size_t i = 3; i + 1 < text.size() && part.empty(); ++i) {
    if (text[i] > ' ' && text[i + 1] > ' ' && text[i] < 127 && text[i + 1] < 127) {
      part = text.substr(i, 2);
    }
  }
  ASSERT_EQ(part.size(), 2u) << text;
  const Json with =
      Complete({{"max_tokens", 30}, {"stop", part}, {"include_stop_str_in_output", true}});
  EXPECT_EQ(with["choices"][0]["text"], text.substr(0, text.find(part) + 2));
  EXPECT_EQ(with["choices"][0]["finish_reason"], "stop");
  // A word it would say.
  const auto without = Complete({{"max_tokens", 30}, {"bad_words", {part}}})["choices"][0]["text"];
  const auto word = Encode(part, false);
  if (word.size() == 1) {
    EXPECT_THAT(without.get<std::string>(), ::testing::Not(HasSubstr(part)));
  }
  const Json none =
      Complete({{"max_tokens", 30}, {"bad_words", {"a", "e", "t"}}, {"return_token_ids", true}});
  for (const char* letter : {"a", "e", "t"}) {
    for (const std::string& spelled : {std::string(letter), std::string(" ") + letter}) {
      const auto token = Encode(spelled, false);
      if (token.size() != 1) continue;
      for (const Json& id : none["choices"][0]["token_ids"]) EXPECT_NE(id, token[0]);
    }
  }
  for (const Json& wrong : {Json{{"min_tokens", 9}, {"max_tokens", 3}}, Json{{"min_tokens", -1}},
                            Json{{"bad_words", "x"}}, Json{{"bad_words", {""}}}}) {
    Json body = {{"prompt", "x"}};
    body.update(wrong);
    server().ExpectError("/v1/completions", body, 400, wrong.begin().key());
  }
}

}  // namespace
}  // namespace litecache::testing

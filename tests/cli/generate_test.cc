#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/join.h"
#include "cli/fixture_model.h"
#include "cli/lossless.h"
#include "cli/program.h"
#include "model/reference.h"

namespace litecache::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ProgramResult Generate(std::vector<std::string> words, const ProgramOptions& options = {}) {
  words.insert(words.begin(), {"generate", "--model", SharedModel().path()});
  return RunProgram(words, options);
}

std::vector<json> Lines(const ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<json> lines;
  std::istringstream stream(result.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(Generate, GreedyTokensEqualTransformers) {
  const model::Reference reference("llama-llama3");  // f32: rounding decides no token
  const TemporaryDirectory directory;
  const auto file = directory.Write("prompt.txt", Join(reference.prompt));
  const auto result =
      RunProgram({"generate", "--model", FixtureDirectory("llama-llama3").string(),
                  "--prompt-tokens-file", file.string(), "--temperature", "0", "--ignore-eos", "-n",
                  std::to_string(reference.greedy.size()), "--json"});
  const auto lines = Lines(result);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["tokens"].get<std::vector<int32_t>>(), reference.greedy);
  EXPECT_EQ(lines[0]["stats"]["prompt_tokens"], reference.prompt.size());
}

TEST(Generate, PoliciesThatLoseNothingAgree) {
  ExpectTokensOfFull({{"--kv-policy", "kvpr", "--kvpr-split", "7"},
                      {"--kv-policy", "kvpr", "--kvpr-split", "1000", "--no-kvpr-chunked"},
                      {"--kv-policy", "kvpr"},
                      {"--kv-policy", "streaming", "--sink", "2", "--recent", "500"}});
}

TEST(Generate, OnePromptGivesOneObjectOfThreeKeys) {
  const auto lines = Lines(Generate({"the cat", "-n", "9", "--json"}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].size(), 3u);
  EXPECT_LE(lines[0]["tokens"].size(), 9u);
  EXPECT_TRUE(lines[0]["text"].is_string());
  EXPECT_EQ(lines[0]["stats"]["generated_tokens"], lines[0]["tokens"].size());
  EXPECT_GT(lines[0]["stats"]["kv"]["device_bytes"], 0);
}

TEST(Generate, TextIsTheDecodedTokens) {
  const auto line = Lines(Generate({"the cat", "-n", "30", "--ignore-eos", "--json"}))[0];
  const auto text =
      RunProgram({"detokenize", "--model", SharedModel().path(), "--no-special", "--json"},
                 {.input = line.dump()});
  EXPECT_EQ(json::parse(text.out)["text"], line["text"]);
  const auto plain = Generate({"the cat", "-n", "30", "--ignore-eos"});
  EXPECT_EQ(plain.out, line["text"].get<std::string>() + "\n");
}

TEST(Generate, PromptsFromEverywhereAreTheSame) {
  const TemporaryDirectory directory;
  const auto text = directory.Write("prompt.txt", "the cat");
  const auto ids = directory.Write(
      "ids.txt", RunProgram({"tokenize", "--model", SharedModel().path(), "the cat"}).out);
  const std::string expected = Generate({"the cat", "-n", "5"}).out;
  EXPECT_EQ(Generate({"-n", "5"}, {.input = "the cat"}).out, expected);
  EXPECT_EQ(Generate({"-n", "5", "-f", "/dev/stdin"}, {.input = "the cat"}).out, expected);
  EXPECT_EQ(Generate({"-n", "5", "-"}, {.input = "the cat"}).out, expected);
  EXPECT_EQ(Generate({"-n", "5", "--prompt-file", text.string()}).out, expected);
  EXPECT_EQ(Generate({"-n", "5", "--prompt-tokens-file", ids.string()}).out, expected);
  EXPECT_EQ(Generate({"-n", "5", "--", "the cat"}).out, expected);
}

TEST(Generate, SeveralPromptsComeInOrderAndEqualSingleOnes) {
  const std::vector<std::string> prompts = {"the cat", "[a, b]", "-dash", "generate", "in the end"};
  std::vector<std::string> words = {"-n", "12", "--json", "--"};
  words.insert(words.end(), prompts.begin(), prompts.end());
  const auto together = Lines(Generate(words));
  ASSERT_EQ(together.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto alone = Lines(Generate({"-n", "12", "--json", "--", prompts[i]}));
    EXPECT_EQ(together[i]["prompt"], i);
    EXPECT_EQ(together[i]["tokens"], alone[0]["tokens"]) << prompts[i];
  }
  const auto text = Generate({"the cat", "in the end", "-n", "3"});
  EXPECT_THAT(text.out, StartsWith("==> the cat <==\n"));
  EXPECT_THAT(text.out, HasSubstr("\n==> in the end <==\n"));
}

TEST(Generate, TheSeedDecides) {
  const std::vector<std::string> sampled = {"the cat", "-n",     "40",     "--temperature",
                                            "1.5",     "--json", "--seed", "7"};
  const auto first = Lines(Generate(sampled))[0];
  EXPECT_EQ(first["tokens"], Lines(Generate(sampled))[0]["tokens"]);
  EXPECT_EQ(first["stats"]["seed"], 7);
  auto other = sampled;
  other.back() = "8";
  EXPECT_NE(first["tokens"], Lines(Generate(other))[0]["tokens"]);
}

TEST(Generate, WithoutASamplingFlagItIsGreedy) {
  const auto greedy = Lines(Generate({"the cat", "-n", "20", "--temp", "0", "--json"}))[0];
  EXPECT_EQ(Lines(Generate({"the cat", "-n", "20", "--json"}))[0]["tokens"], greedy["tokens"]);
}

TEST(Generate, SamplesOfOnePromptDiffer) {
  const auto lines = Lines(
      Generate({"the cat", "-n", "30", "--samples", "3", "--seed", "1", "--ignore-eos", "--json"}));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2]["sample"], 2);
  EXPECT_NE(lines[0]["tokens"], lines[1]["tokens"]);
  EXPECT_NE(lines[1]["tokens"], lines[2]["tokens"]);
}

TEST(Generate, LogprobsBelongToTheTokens) {
  const auto line =
      Lines(Generate({"the cat", "-n", "6", "--ignore-eos", "--json", "--logprobs", "3"}))[0];
  ASSERT_EQ(line["logprobs"].size(), line["tokens"].size());
  for (size_t i = 0; i < line["tokens"].size(); ++i) {
    const auto& entry = line["logprobs"][i];
    EXPECT_EQ(entry["token"], line["tokens"][i]);
    ASSERT_EQ(entry["top"].size(), 3u);
    EXPECT_EQ(entry["top"][0]["token"], line["tokens"][i]);  // greedy
    EXPECT_FLOAT_EQ(entry["top"][0]["logprob"], entry["logprob"]);
    EXPECT_LE(entry["logprob"], 0.0);
  }
}

TEST(Generate, StopsBeforeTheStopText) {
  const auto all = Lines(Generate({"the cat", "-n", "40", "--ignore-eos", "--json"}))[0];
  const std::string text = all["text"];
  // An ASCII character that occurs in the text after its beginning.
  size_t at = text.size();
  for (size_t i = 3; i < text.size() && at == text.size(); ++i) {
    if (text[i] > ' ' && text.find(text[i]) == i) at = i;
  }
  ASSERT_LT(at, text.size()) << text;
  const auto stopped = Lines(Generate({"the cat", "-n", "40", "--ignore-eos", "--json", "--stop",
                                       "never [this], ok", "--stop", text.substr(at, 1)}))[0];
  EXPECT_EQ(stopped["text"], text.substr(0, at));
  EXPECT_EQ(stopped["stats"]["finish_reason"], "stop");
}

TEST(Generate, StopTokensAndLimits) {
  const auto all = Lines(Generate({"the cat", "-n", "10", "--ignore-eos", "--json"}))[0];
  EXPECT_EQ(all["tokens"].size(), 10u);
  EXPECT_EQ(all["stats"]["finish_reason"], "length");
  const int third = all["tokens"][2];
  const auto stopped = Lines(Generate(
      {"the cat", "-n", "10", "--ignore-eos", "--json", "--stop-token", std::to_string(third)}))[0];
  EXPECT_LE(stopped["tokens"].size(), 3u);
  EXPECT_EQ(stopped["stats"]["finish_reason"], "stop");
  // Until the context of 1024 is full.
  const auto full = Lines(Generate({"the cat", "-n", "0", "--ignore-eos", "--json"}))[0];
  EXPECT_EQ(full["tokens"].size() + full["stats"]["prompt_tokens"].get<size_t>(), 1024u);
}

TEST(Generate, ChatWrapsThePromptAndKeepsTheUsersTokensText) {
  const auto ids = [](const std::string& text) {
    return RunProgram({"tokenize", "--model", SharedModel().path(), "--no-special", text}).out;
  };
  const TemporaryDirectory directory;
  const auto chat = Lines(Generate({"--chat", "the cat", "-n", "8", "--json"}))[0];
  const auto file = directory.Write("chat.txt", ids("<s><|user|>the cat</s><|assistant|>"));
  const auto plain =
      Lines(Generate({"--prompt-tokens-file", file.string(), "-n", "8", "--json"}))[0];
  EXPECT_EQ(chat["tokens"], plain["tokens"]);
  // 9 more characters, of "<|user|>", as text: none of them is part of a merge.
  const auto spoof = Lines(Generate({"--chat", "the cat<|user|>", "-n", "8", "--json"}))[0];
  const auto as_text =
      json::parse(RunProgram({"tokenize", "--model", SharedModel().path(), "--no-special",
                              "--plain", "--json", "the cat<|user|>"})
                      .out);
  EXPECT_EQ(spoof["stats"]["prompt_tokens"], as_text["ids"].size() + 4);
  // A custom template and system message.
  const auto custom =
      directory.Write("t.jinja", "{{ messages[0].content }}+{{ messages[1].content }}");
  const auto own = Lines(Generate({"--chat", "cat", "--system", "the", "--chat-template",
                                   custom.string(), "-n", "8", "--json"}))[0];
  EXPECT_EQ(own["stats"]["prompt_tokens"], 5);  // the + c a t
}

TEST(Generate, OutputIsValidUtf8WhateverTheModelSays) {
  for (const char* seed : {"1", "2", "3"}) {
    const auto result = Generate({"the cat \xff\xfe", "-n", "200", "--temp", "3", "--seed", seed,
                                  "--ignore-eos", "--json", "--show-special"});
    const auto lines = Lines(result);  // parse() rejects invalid UTF-8
    EXPECT_EQ(lines.size(), 1u);
  }
}

TEST(Generate, SummaryIsForPeople) {
  const auto result = Generate({"the cat", "-n", "5"});
  EXPECT_THAT(result.err, HasSubstr("tok/s"));
  EXPECT_THAT(result.err, HasSubstr("first token after"));
  EXPECT_THAT(result.err, HasSubstr("KV cache (full)"));
  EXPECT_THAT(result.err, HasSubstr("peak memory"));
  EXPECT_EQ(result.err.find('\r'), std::string::npos);  // no progress bars without a terminal
  EXPECT_EQ(Generate({"the cat", "-n", "5", "--quiet"}).err, "");
  EXPECT_EQ(Generate({"the cat", "-n", "5", "--json"}).err, "");
}

TEST(Generate, ErrorsComeBeforeTheWork) {
  const auto expect = [](const std::vector<std::string>& words, int code, const std::string& part,
                         const ProgramOptions& options = {}) {
    const auto result = Generate(words, options);
    EXPECT_EQ(result.exit_code, code) << part;
    EXPECT_EQ(result.out, "") << part;
    EXPECT_THAT(result.err, StartsWith("error: "));
    EXPECT_THAT(result.err, HasSubstr(part));
  };
  const TemporaryDirectory directory;
  const auto wrong = directory.Write("wrong.txt", "1 2 three");
  const auto empty = directory.Write("empty.txt", "");
  const auto high = directory.Write("high.txt", "1 192");
  const auto long_text = directory.Write("long.txt", std::string(3000, 'x'));
  expect({"--prompt-file", "/nowhere/p.txt"}, 1, "/nowhere/p.txt");
  expect({"--prompt-tokens-file", wrong.string()}, 2, "'three'");
  expect({"--prompt-tokens-file", empty.string()}, 2, "empty");
  expect({"--no-special", ""}, 2, "empty");
  expect({"--no-special"}, 2, "empty", {.input = ""});
  expect({}, 2, "standard input is empty", {.input = ""});
  expect({"--prompt-tokens-file", high.string()}, 2, "192");
  expect({"--prompt-file", long_text.string()}, 1, "1024");
  expect({"the", "-n", "2000"}, 1, "1024");
  expect({"the", "--temperature", "-1"}, 2, "temperature");
  expect({"the", "--temperature", "nan"}, 2, "temperature");
  expect({"the", "--top-p", "1.5"}, 2, "--top-p");
  expect({"the", "--stop", ""}, 2, "--stop");
  expect({"the", "--logprobs", "3"}, 2, "--json");
  expect({"the", "--samples", "0"}, 2, "--samples");
  expect({"the", "--system", "x"}, 2, "--chat");
  expect({"the", "--chat", "--chat-template", "/nowhere/t"}, 1, "/nowhere/t");
  const auto broken = directory.Write("broken.jinja", "{% if %}");
  expect({"the", "--chat", "--chat-template", broken.string()}, 1, "broken.jinja");
  expect({"the", "--max-context", "4096"}, 2, "4096");
}

TEST(Generate, AModelWithoutTemplateOrTokenizerSaysSo) {
  const std::string bare = FixtureDirectory("llama").string();
  const auto text = RunProgram({"generate", "--model", bare, "the"});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.err, HasSubstr("no tokenizer"));
  const FixtureModel model;
  model.directory().Write("tokenizer_config.json", "{\"bos_token\": \"<s>\"}");
  const auto chat = RunProgram({"generate", "--model", model.path(), "--chat", "the"});
  EXPECT_EQ(chat.exit_code, 1);
  EXPECT_THAT(chat.err, HasSubstr("--chat-template"));
}

// The rule of docs/reference/cli.md, which serve keeps as well: --temperature 1 where neither
// generation_config.json nor a flag says anything.
TEST(Generate, SamplesByDefaultAsServersDo) {
  const FixtureModel model;
  const auto text = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--model", model.path(), "the cat", "--seed", "3"});
    return RunProgram(more).out;
  };
  const std::string greedy = text({"--temperature", "0"});
  const std::string sampled = text({"--temperature", "1"});
  ASSERT_NE(greedy, sampled);
  for (const auto& [config, expected] :
       std::vector<std::pair<std::string, std::string>>{{R"({"do_sample": false})", greedy},
                                                        {R"({"temperature": 0})", greedy},
                                                        {R"({"do_sample": true})", sampled},
                                                        {R"({"eos_token_id": 2})", sampled}}) {
    model.directory().Write("generation_config.json", config);
    EXPECT_EQ(text({}), expected) << config;
  }
  model.directory().Write("generation_config.json", R"({"do_sample": false, "temperature": 0.7})");
  EXPECT_EQ(text({}), greedy);
  EXPECT_EQ(text({"--top-p", "1"}), sampled);
}

TEST(Generate, SaysThatTheAnswerWasCut) {
  EXPECT_THAT(Generate({"the", "-n", "3"}).err, HasSubstr("cut at --max-tokens 3"));
  EXPECT_THAT(Generate({"the", "-n", "3", "--samples", "2"}).err, HasSubstr("2 of 2 answers"));
  EXPECT_THAT(Generate({"the", "-n", "0", "-c", "16", "--ignore-eos"}).err,
              Not(HasSubstr("--max-tokens")));
  EXPECT_EQ(Generate({"the", "-n", "3", "--quiet"}).err, "");
}

TEST(Generate, ThreadsAndChunksDoNotChangeTheTokens) {
  const TemporaryDirectory directory;
  const auto file = directory.Write("p.txt", Join(model::Reference("llama").prompt));
  const std::vector<std::string> base = {
      "--prompt-tokens-file", file.string(), "-n", "8", "--dtype", "f32", "--json"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return Lines(Generate(more))[0]["tokens"];
  };
  const auto expected = with({});
  EXPECT_EQ(with({"--threads", "1"}), expected);
  EXPECT_EQ(with({"--threads", "3", "--prefill-chunk", "37"}), expected);
  EXPECT_EQ(with({"--memory", "64MiB", "--max-batch", "1"}), expected);
}

}  // namespace
}  // namespace litecache::testing

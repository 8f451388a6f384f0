#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/fixture_model.h"
#include "cli/program.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

ProgramResult Chat(const std::string& input, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"chat", "--model", SharedModel().path(), "-n", "6"});
  return RunProgram(more, {.input = input});
}

// Greedy text after a prompt of ids, as returned by `generate`.
std::string Answer(const std::string& rendered) {
  const auto ids = RunProgram({"tokenize", "--model", SharedModel().path(), "--no-special"},
                              {.input = rendered});
  const TemporaryDirectory directory;
  const auto file = directory.Write("ids.txt", ids.out);
  const auto result = RunProgram({"generate", "--model", SharedModel().path(), "-n", "6",
                                  "--prompt-tokens-file", file.string(), "--json"});
  return nlohmann::json::parse(result.out)["text"];
}

std::string Line(const std::string& text) { return text.ends_with('\n') ? text : text + "\n"; }

TEST(Chat, TheConversationIsThePrompt) {
  const std::string first = Answer("<s><|user|>the cat</s><|assistant|>");
  const auto one = Chat("the cat\n");
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.out, Line(first));
  const std::string second =
      Answer("<s><|user|>the cat</s><|assistant|>" + first + "</s><|user|>on</s><|assistant|>");
  EXPECT_EQ(Chat("the cat\non\n").out, Line(first) + Line(second));
}

TEST(Chat, SystemMessageAndReset) {
  const std::string system = Answer("<s><|system|>in</s><|user|>the cat</s><|assistant|>");
  const std::string without = Answer("<s><|user|>the cat</s><|assistant|>");
  EXPECT_EQ(Chat("the cat\n", {"--system", "in"}).out, Line(system));
  EXPECT_EQ(Chat("/system in\nthe cat\n/system\nthe cat").out, Line(system) + Line(without));
  EXPECT_EQ(Chat("the cat\n/reset\nthe cat\n").out, Line(without) + Line(without));
  EXPECT_EQ(Chat("the cat\n/retry\n").out, Line(without) + Line(without));
}

TEST(Chat, LinesGoOnAfterABackslash) {
  EXPECT_EQ(Chat("the\\\ncat\n").out, Line(Answer("<s><|user|>the\ncat</s><|assistant|>")));
}

// The format of gpt-oss, whose tokens this model does not have: what it says has no header.
TEST(Chat, AnAnswerWithoutChannelsIsText) {
  const TemporaryDirectory directory;
  const std::string file =
      directory.Write("t", "<|channel|><|message|>{{ messages[0].content }}").string();
  const auto result = Chat("the cat\n", {"--chat-template", file});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, Line(Answer("<|channel|><|message|>the cat")));
}

TEST(Chat, Commands) {
  const auto result = Chat("/help\n/stats\n/what\n/retry\n\n/quit\nnever read\n");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("/system"));
  EXPECT_THAT(result.err, HasSubstr("(no answer yet)"));
  EXPECT_THAT(result.err, HasSubstr("/what is not a command"));
  EXPECT_THAT(result.err, HasSubstr("nothing to answer"));
}

TEST(Chat, AFileGoesBeforeTheNextMessage) {
  const TemporaryDirectory directory;
  const std::string notes = directory.Write("notes.txt", "the\ncat").string();
  const auto result = Chat("/file " + notes + "\non\n");
  EXPECT_EQ(result.out, Line(Answer("<s><|user|>notes.txt:\n\nthe\ncat\n\non</s><|assistant|>")));
  EXPECT_THAT(result.err, HasSubstr("notes.txt: 5 tokens"));
  // What cannot be read leaves the conversation as it is.
  const std::string large = directory.Write("large.txt", std::string(2000, 'x')).string();
  const auto none = Chat("/file " + large + "\n/file /nowhere/a\n/file\nthe cat\n");
  EXPECT_EQ(none.out, Line(Answer("<s><|user|>the cat</s><|assistant|>")));
  EXPECT_THAT(none.err, HasSubstr("2000 tokens do not fit"));
  EXPECT_THAT(none.err, HasSubstr("/nowhere/a: cannot open"));
  EXPECT_THAT(none.err, HasSubstr("name a file"));
  EXPECT_EQ(none.exit_code, 1);
}

TEST(Chat, AFullDiskIsReportedOnce) {
  const auto result = RunProgram({"chat", "--model", SharedModel().path(), "-n", "6"},
                                 {.input = "the cat\n", .output_file = "/dev/full"});
  EXPECT_EQ(result.exit_code, 1);
  const std::string error = "error: standard output: cannot write";
  ASSERT_THAT(result.err, HasSubstr(error));
  EXPECT_EQ(result.err.find(error), result.err.rfind(error)) << result.err;
}

TEST(Chat, AMessageThatDoesNotFitLeavesTheConversationAsItWas) {
  const auto result = Chat(std::string(2000, 'x') + "\nthe cat\n");
  EXPECT_EQ(result.exit_code, 1);  // a script has no other way to know
  EXPECT_THAT(result.err, HasSubstr("1024"));
  EXPECT_EQ(result.out, Line(Answer("<s><|user|>the cat</s><|assistant|>")));
}

TEST(Chat, ErrorsAtTheStart) {
  EXPECT_EQ(Chat("a\n", {"--chat-template", "/nowhere/t"}).exit_code, 1);
  EXPECT_EQ(Chat("a\n", {"--temperature", "-1"}).exit_code, 2);
  const FixtureModel model;
  model.directory().Write("tokenizer_config.json", "{}");
  const auto none = RunProgram({"chat", "--model", model.path()});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("--chat-template"));
}

}  // namespace
}  // namespace litecache::testing

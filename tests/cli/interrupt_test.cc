// Ctrl-C.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/fixture_model.h"
#include "cli/program.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Endless(std::vector<std::string> more = {}) {
  more.insert(more.begin(),
              {"generate", "--model", EndlessModel().path(), "the cat", "-n", "0", "--ignore-eos"});
  return more;
}

TEST(Interrupt, GenerateEndsWithTheSummary) {
  Program program(Endless(), {});
  ASSERT_TRUE(program.WaitForBytes(50)) << program.err();
  program.Signal(SIGINT);
  const auto result = program.Finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("tok/s"));
  EXPECT_TRUE(result.out.ends_with('\n'));
}

TEST(Interrupt, JsonHoldsWhatThereIs) {
  // Nothing shows that generation has started; loading takes milliseconds.
  Program program(Endless({"--json"}), {});
  usleep(2'000'000);
  program.Signal(SIGINT);
  const auto result = program.Finish();
  EXPECT_EQ(result.exit_code, 130);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["stats"]["finish_reason"], "cancelled");
}

class ChatTerminalTest : public ::testing::Test {
 protected:
  ChatTerminalTest()
      : program_({"chat", "--model", EndlessModel().path(), "--ignore-eos"}, {.terminal = true}) {}
  Program program_;
};

TEST_F(ChatTerminalTest, CtrlCStopsTheAnswerNotTheProgram) {
  ASSERT_TRUE(program_.WaitForError("> "));
  program_.Write("the cat\n");
  ASSERT_TRUE(program_.WaitForBytes(50)) << program_.err();
  program_.Write("\x03");
  ASSERT_TRUE(program_.WaitForError("(stopped)\n> ")) << program_.err();
  program_.Write("/stats\n");
  ASSERT_TRUE(program_.WaitForError("KV cache (full)")) << program_.err();
  program_.Write("\x04");  // Ctrl-D
  EXPECT_EQ(program_.Finish().exit_code, 0);
}

TEST_F(ChatTerminalTest, CtrlCTwiceAtThePromptLeaves) {
  ASSERT_TRUE(program_.WaitForError("> "));
  usleep(100'000);  // until it waits for the line
  program_.Write("\x03");
  ASSERT_TRUE(program_.WaitForError("(Ctrl-C again leaves)\n> ")) << program_.err();
  usleep(100'000);
  program_.Write("\x03");
  EXPECT_EQ(program_.Finish().exit_code, 130);
}

}  // namespace
}  // namespace litecache::testing

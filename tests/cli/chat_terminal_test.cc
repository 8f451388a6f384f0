// A conversation at a terminal: keys, pastes, Ctrl-C.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/fixture_model.h"
#include "cli/program.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kUp = "\x1b[A";

std::string Pasted(const std::string& text) { return "\x1b[200~" + text + "\x1b[201~"; }

class ChatTerminalTest : public ::testing::Test {
 protected:
  Program Chat(const std::string& model, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"chat", "--model", model});
    return Program(
        more, {.terminal = true, .environment = {"XDG_STATE_HOME=" + directory_.path().string()}});
  }
  // What the model answers to one message.
  static std::string Answer(const std::string& message) {
    return RunProgram({"generate", "--model", SharedModel().path(), "--chat", "-n", "6", message})
        .out;
  }

  TemporaryDirectory directory_;
};

TEST_F(ChatTerminalTest, CtrlCStopsTheAnswerNotTheProgram) {
  Program program = Chat(EndlessModel().path(), {"--ignore-eos"});
  ASSERT_TRUE(program.WaitForTerminal("> "));
  program.Write("the cat\r");
  ASSERT_TRUE(program.WaitForBytes(50)) << program.err();
  program.ClearShown();
  program.Write("\x03");
  ASSERT_TRUE(program.WaitForError("(stopped)\n")) << program.err();
  ASSERT_TRUE(program.WaitForTerminal("> "));
  program.Write("/stats\r");
  ASSERT_TRUE(program.WaitForError("KV cache (full)")) << program.err();
  program.Write("\x04");  // Ctrl-D
  EXPECT_EQ(program.Finish().exit_code, 0);
  EXPECT_TRUE(program.TerminalIsAsBefore());
}

TEST_F(ChatTerminalTest, CtrlCTwiceAtThePromptLeaves) {
  Program program = Chat(SharedModel().path());
  ASSERT_TRUE(program.WaitForTerminal("> "));
  usleep(100'000);  // until it waits for the line
  program.ClearShown();
  program.Write("\x03");
  ASSERT_TRUE(program.WaitForError("(Ctrl-C again leaves)\n")) << program.err();
  ASSERT_TRUE(program.WaitForTerminal("> "));
  usleep(100'000);
  program.Write("\x03");
  EXPECT_EQ(program.Finish().exit_code, 130);
  EXPECT_TRUE(program.TerminalIsAsBefore());
}

TEST_F(ChatTerminalTest, APasteOfSeveralLinesIsOneMessage) {
  Program program = Chat(SharedModel().path(), {"-n", "6"});
  ASSERT_TRUE(program.WaitForTerminal("> "));
  program.Write(Pasted("the\rcat") + "\r");
  ASSERT_TRUE(program.WaitForTerminal("[paste 1: 2 lines, 7 bytes]")) << program.shown();
  const std::string answer = Answer("the\ncat");
  EXPECT_TRUE(program.WaitForOutput(answer)) << program.out() << program.err();
  // The label can be deleted (Ctrl-U), and what begins with a slash is no command.
  program.Write("/reset\r" + Pasted("on\ron") + "\x15" + Pasted("/quit\r\nthe\r") + "\r/quit\r");
  EXPECT_EQ(program.Finish().exit_code, 0);
  EXPECT_EQ(program.out(), answer + Answer("/quit\nthe\n")) << program.err();
}

TEST_F(ChatTerminalTest, NothingOfALongPasteIsLost) {
  const std::string text(20'000, 'x');
  // The fixture's context is 1024 tokens: the refusal says how many there were.
  const std::string refusal = "20004 tokens";
  for (const std::string& pasted : {Pasted(text), text}) {
    Program program = Chat(SharedModel().path());
    ASSERT_TRUE(program.WaitForTerminal("> "));
    program.Write(pasted + "\r");
    EXPECT_TRUE(program.WaitForError(refusal)) << program.err();
    program.Write("/quit\r");
    EXPECT_EQ(program.Finish().exit_code, 0);
  }
}

TEST_F(ChatTerminalTest, NothingTypedDuringAnAnswerIsLost) {
  Program program = Chat(EndlessModel().path(), {"--ignore-eos", "-n", "2000"});
  ASSERT_TRUE(program.WaitForTerminal("> "));
  program.Write("the cat\r");
  ASSERT_TRUE(program.WaitForBytes(20)) << program.err();
  const std::string word = "/" + std::string(6000, 'x');
  program.Write(word + "\r/quit\r");
  EXPECT_EQ(program.Finish().exit_code, 0);
  EXPECT_THAT(program.err(), HasSubstr("(" + word + " is not a command"));
}

TEST_F(ChatTerminalTest, LinesAreEditedAndKept) {
  const std::string answer = Answer("the cat");
  Program program = Chat(SharedModel().path(), {"-n", "6"});
  ASSERT_TRUE(program.WaitForTerminal("> "));
  program.Write("he cax\x7ft\x01t\r");  // backspace, Ctrl-A: the beginning of the line
  ASSERT_TRUE(program.WaitForOutput(answer)) << program.out() << program.err();
  program.Write("/reset\r" + std::string(kUp) + kUp + "\r\x04");
  EXPECT_EQ(program.Finish().exit_code, 0);
  EXPECT_EQ(program.out(), answer + answer);

  Program next = Chat(SharedModel().path(), {"-n", "6"});
  ASSERT_TRUE(next.WaitForTerminal("> "));
  next.Write(std::string(kUp) + "\r\x04");
  EXPECT_EQ(next.Finish().exit_code, 0);
  EXPECT_EQ(next.out(), answer);

  // A pipe that nobody writes to, or a device such as /dev/null, is neither read nor written.
  const std::string pipe = (directory_.path() / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0644), 0);
  for (const std::string& history : {std::string("none"), pipe}) {
    Program without = Chat(SharedModel().path(), {"-n", "6", "--history", history});
    ASSERT_TRUE(without.WaitForTerminal("> "));
    without.Write(std::string(kUp) + "\r\x04");
    EXPECT_EQ(without.Finish().exit_code, 0);
    EXPECT_EQ(without.out(), "");
    EXPECT_EQ(without.err().find("history"), std::string::npos) << without.err();
  }
}

TEST_F(ChatTerminalTest, ALineThatATerminalHasCutIsNotSent) {
  const std::string model = SharedModel().path();
  Program program({"chat", "--model", model}, {.terminal = true, .environment = {"TERM=dumb"}});
  ASSERT_TRUE(program.WaitForError("> "));
  program.Write(std::string(5000, 'x') + "\n");
  EXPECT_TRUE(program.WaitForError("cut this line at 4,095 bytes")) << program.err();
  program.Write("/quit\n");
  EXPECT_EQ(program.Finish().exit_code, 0);
  EXPECT_EQ(program.out(), "");
}

}  // namespace
}  // namespace litecache::testing

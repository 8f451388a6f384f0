#include "cli/answer_text.h"

#include <gtest/gtest.h>

namespace litecache::testing {
namespace {

using cli::AnswerText;

// What is printed of an answer that arrives byte by byte.
std::string Print(AnswerText* text, const std::string& answer) {
  std::string printed;
  for (const char c : answer) printed += text->Add(std::string(1, c));
  return printed + text->Finish();
}

TEST(AnswerText, OfMostModelsIsAllOfIt) {
  AnswerText text(false, true);
  const std::string answer = "<think>a</think><|channel|>final<|message|>b";
  EXPECT_EQ(Print(&text, answer), answer);
  EXPECT_EQ(text.answer(), answer);
}

TEST(AnswerText, ThoughtsInHarmonyAreDimmedOrLeftOut) {
  const std::string answer =
      "<|channel|>analysis<|message|>ab<|end|><|start|>assistant<|channel|>final<|message|>cd\n";
  AnswerText piped(true, false);
  EXPECT_EQ(Print(&piped, answer), "cd\n");
  EXPECT_EQ(piped.answer(), "cd\n");
  AnswerText shown(true, true);
  EXPECT_EQ(Print(&shown, answer), "\033[2ma\033[0m\033[2mb\033[0m\n\ncd\n");
  EXPECT_EQ(shown.answer(), "cd\n");
  AnswerText broken(true, false);
  EXPECT_EQ(Print(&broken, "Hello"), "Hello");
}

}  // namespace
}  // namespace litecache::testing

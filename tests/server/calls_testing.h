// What tests of parsers of calls share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "server/call_templates.h"
#include "server/every_cut.h"
#include "server/tool_events.h"

namespace litecache::testing {

// What a parser makes of an answer, as Joined().
template <typename Parser>
std::string ParseAll(Parser parser, const Pieces& pieces) {
  std::vector<server::ToolEvent> events;
  for (const std::string_view piece : pieces) parser.Add(piece, &events);
  parser.Finish(&events);
  return Joined(events);
}

// Of a parser that knows several forms.
class CallFormsTest : public ::testing::Test {
 protected:
  virtual std::string Parse(server::ToolFormat format, const Pieces& pieces) const = 0;

  void Expect(server::ToolFormat format, const std::string& answer,
              const std::string& expected) const {
    ExpectForEveryCut(
        answer, [&](const Pieces& pieces) { return Parse(format, pieces); }, expected);
  }
  void ExpectText(server::ToolFormat format, const std::string& answer) const {
    Expect(format, answer, answer);
  }
  // Expects the same of 2000 answers of up to 15 parts, however they are cut. part(form): a random
  // one.
  template <typename Random, typename Part>
  void ExpectForRandomAnswers(const std::vector<CallTemplate>& forms, Random& random,
                              const Part& part) const {
    for (const CallTemplate& form : forms) {
      SCOPED_TRACE(form.name);
      for (int i = 0; i < 2000; ++i) {
        std::string answer;
        for (size_t count = random() % 16; count > 0; --count) answer += part(form);
        ExpectForRandomCuts(answer, random,
                            [&](const Pieces& pieces) { return Parse(form.format, pieces); });
        if (HasFatalFailure()) return;
      }
    }
  }
  // Of answers of some millions of bytes. Takes seconds; searching, moving or copying what is
  // pending with every piece would take hours.
  void ExpectProportionalTime(server::ToolFormat format,
                              const std::vector<std::string>& answers) const {
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& answer : answers) {
      EXPECT_EQ(Parse(format, PiecesOf(answer, 3)), Parse(format, {answer}));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(5));
  }

  int most_ = 10;  // calls of an answer
};

}  // namespace litecache::testing

// Answers that two configurations give to one request.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace litecache::testing {

// Tokens of each sample, drawn with the same random numbers. A chunk's rows are summed in another
// order than single rows; one draw in some ten thousand lies so close between two tokens that this
// decides it, so that one of several samples may differ.
inline void ExpectSameAnswers(const std::vector<nlohmann::json>& answers,
                              const std::vector<nlohmann::json>& expected) {
  ASSERT_EQ(answers.size(), expected.size());
  size_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (answers[i] == expected[i]) continue;
    ++different;
    EXPECT_LE(different, expected.size() > 1 ? 1 : 0) << answers[i] << "\n" << expected[i];
  }
}

}  // namespace litecache::testing

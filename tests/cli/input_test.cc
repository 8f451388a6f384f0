#include "cli/input.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>

#include "cli/fixture_model.h"
#include "cli/json_text.h"
#include "expect_error.h"
#include "test_seed.h"

namespace litecache::cli {
namespace {

using Ids = std::vector<int32_t>;

TEST(ParseTokenIds, ReadsWhatPeopleAndProgramsWrite) {
  EXPECT_EQ(ParseTokenIds("1 2\t3\n4\r\n5", "f"), (Ids{1, 2, 3, 4, 5}));
  EXPECT_EQ(ParseTokenIds("  7,8, 9 ", "f"), (Ids{7, 8, 9}));
  EXPECT_EQ(ParseTokenIds("[1, 2, 2147483647]", "f"), (Ids{1, 2, 2147483647}));
  EXPECT_EQ(ParseTokenIds("{\"ids\": [5]}\n", "f"), (Ids{5}));
  EXPECT_EQ(ParseTokenIds("{\"tokens\": [6, 7], \"text\": \"[x]\", \"stats\": {}}", "f"),
            (Ids{6, 7}));
  EXPECT_EQ(ParseTokenIds("", "f"), Ids{});
  EXPECT_EQ(ParseTokenIds("{\"ids\": []}", "f"), Ids{});
}

TEST(ParseTokenIds, NamesWhatIsWrong) {
  EXPECT_ERROR(ParseTokenIds("1 2 x3", "ids.txt"), InvalidArgument, "ids.txt", "item 3", "'x3'");
  EXPECT_ERROR(ParseTokenIds("-1", "f"), InvalidArgument, "'-1'");
  EXPECT_ERROR(ParseTokenIds("2147483648", "f"), InvalidArgument, "2147483648");
  EXPECT_ERROR(ParseTokenIds("1.5", "f"), InvalidArgument, "'1.5'");
  EXPECT_ERROR(ParseTokenIds("[1, -2]", "f"), InvalidArgument, "item 2", "-2");
  EXPECT_ERROR(ParseTokenIds("[1, 1e3]", "f"), InvalidArgument, "item 2");
  EXPECT_ERROR(ParseTokenIds("[1, \"2\"]", "f"), InvalidArgument, "item 2");
  EXPECT_ERROR(ParseTokenIds("[2147483648]", "f"), InvalidArgument, "item 1");
  EXPECT_ERROR(ParseTokenIds("{\"text\": \"a\"}", "f"), InvalidArgument, "\"ids\"");
  EXPECT_ERROR(ParseTokenIds("[1, 2", "f"), FileError, "f");
}

TEST(ParseTokenIds, ReadsBackWhatWasJoined) {
  auto random = litecache::testing::TestRandom();
  Ids ids(1000);
  for (auto& id : ids) id = static_cast<int32_t>(random() >> 33);
  EXPECT_EQ(ParseTokenIds(litecache::testing::Join(ids), "f"), ids);
}

TEST(JsonText, FloatsReadBackTheSame) {
  auto random = litecache::testing::TestRandom();
  for (int i = 0; i < 10000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    const float value = std::bit_cast<float>(bits);
    std::string text;
    AppendJsonFloat(value, &text);
    if (std::isfinite(value)) {
      EXPECT_EQ(std::strtof(text.c_str(), nullptr), value) << text;
      EXPECT_TRUE(nlohmann::json::accept(text)) << text;
    } else {
      EXPECT_EQ(text, "null");
    }
  }
}

TEST(JsonText, IsValidWhateverComes) {
  const std::string line = ToJsonLine({{"text", "a\xff\xc3"}, {"x", std::nan("")}});
  const auto read = nlohmann::json::parse(line);
  EXPECT_EQ(read["text"], "a\uFFFD\uFFFD");
  EXPECT_TRUE(read["x"].is_null());
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace litecache::cli

#include "tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "test_seed.h"

namespace litecache::tokenizer {
namespace {

TEST(Utf8, RoundTripsEveryScalarValue) {
  std::string text;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    text.clear();
    AppendUtf8(c, &text);
    size_t offset = 0;
    ASSERT_EQ(NextCodePoint(text, &offset), c);
    ASSERT_EQ(offset, text.size());
    ASSERT_EQ(SequenceLength(static_cast<unsigned char>(text[0])), text.size());
    ASSERT_EQ(PreviousCharacter("x" + text, text.size() + 1), 1u);
    ASSERT_TRUE(IsValidUtf8(text));
  }
}

// Expected results are Python's bytes.decode("utf-8", errors="replace").
TEST(Utf8, RepairsLikePython) {
  const std::string r(kReplacementCharacter);
  const std::pair<std::string, std::string> cases[] = {
      {"\x80", r},
      {"\xC0\xAF", r + r},          // overlong
      {"\xC3", r},                  // truncated
      {"\xC3(", r + "("},           //
      {"\xE2\x82", r},              // truncated: one maximal subpart
      {"\xE2\x82x", r + "x"},       //
      {"\xE0\x80\x80", r + r + r},  // overlong
      {"\xED\xA0\x80", r + r + r},  // surrogate
      {"\xF0\x9F\x98", r},          // truncated emoji
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", r + "\xF0\x9F\x98\x80"},
      {"\xF4\x90\x80\x80", r + r + r + r},  // above U+10FFFF
      {"\xF5\x80", r + r},                  //
      {std::string("a\0b", 3), std::string("a\0b", 3)},
  };
  for (const auto& [bytes, expected] : cases) {
    EXPECT_EQ(RepairUtf8(bytes), expected);
    EXPECT_EQ(IsValidUtf8(bytes), bytes == expected);
  }
}

TEST(Utf8, RepairingAStreamEqualsRepairingTheWhole) {
  auto random = testing::TestRandom(1);
  const std::string alphabet = "aé\xE2\x82\xAC\xF0\x9F\x98\x80\xFF\xC0\xED\xA0";
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (size_t i = random() % 12; i > 0; --i) bytes += alphabet[random() % alphabet.size()];
    Utf8Repairer repairer;
    std::string streamed;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min(bytes.size() - at, size_t{1} + random() % 3);
      std::string part;
      repairer.Add(std::string_view(bytes).substr(at, size), &part);
      ASSERT_TRUE(IsValidUtf8(part));
      streamed += part;
      at += size;
    }
    repairer.Flush(&streamed);
    ASSERT_EQ(streamed, RepairUtf8(bytes));
    ASSERT_TRUE(IsValidUtf8(streamed));
  }
}

}  // namespace
}  // namespace litecache::tokenizer

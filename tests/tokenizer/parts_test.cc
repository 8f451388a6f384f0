// Tests normalizers, pre-tokenizers, post-processors and decoders separately, and the files they
// reject.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/placeholder.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/unicode.h"

namespace litecache::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

std::string Normalized(const std::string& json, const std::string& text) {
  NormalizedText normalized{text};
  LoadNormalizer(Json::parse(json), "file: normalizer")->Apply(&normalized);
  return normalized.text;
}

std::vector<std::string> Cut(const std::string& json, const std::string& text,
                             bool starts_input = true) {
  TextArena arena;
  Pieces pieces = {{text, -1, starts_input}};
  LoadPreTokenizer(Json::parse(json), "file: pre_tokenizer")->Apply(&pieces, &arena);
  std::vector<std::string> out;
  for (const Piece& piece : pieces) out.emplace_back(piece.text);
  return out;
}

std::string Decoded(const std::string& json, const std::vector<std::string>& tokens) {
  const auto decoder = LoadDecoder(Json::parse(json), "file: decoder");
  DecodeChain chain(*decoder);
  for (const std::string& token : tokens) chain.Put(token);
  chain.Finish();
  return chain.Take();
}

template <typename Load>
std::string ErrorOf(Load load, const std::string& json) {
  try {
    load(Json::parse(json), "file: part");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Normalizer, Forms) {
  EXPECT_EQ(Normalized(R"({"type":"NFC"})", "e\u0301\uFB01"), "\u00e9\uFB01");
  EXPECT_EQ(Normalized(R"({"type":"NFD"})", "\u00e9\uAC00"), "e\u0301\u1100\u1161");
  EXPECT_EQ(Normalized(R"({"type":"NFKC"})", "\uFB01\u2460e\u0301"), "fi1\u00e9");
  EXPECT_EQ(Normalized(R"({"type":"NFKD"})", "\uFB01\u00e9"), "fie\u0301");
  // U+11A7 directly precedes the trailing consonants of Hangul and is not one of them.
  EXPECT_EQ(Normalized(R"({"type":"NFC"})", "\u1107\u1163\u11A7\u11A8"), "\uBC4C\u11A7\u11A8");
  EXPECT_EQ(Normalized(R"({"type":"NFKC"})", "\uBC4C\u11A8\u11A7"), "\uBC4D\u11A7");
  // Characters newer than the package's data stay unchanged; marks around them are still sorted.
  EXPECT_EQ(Normalized(R"({"type":"NFKC"})", "e\u0301\U00010781e\u0301"), "\u00e9\U00010781\u00e9");
}

TEST(Normalizer, TextChanges) {
  EXPECT_EQ(Normalized(R"({"type":"Lowercase"})", "ÀİẞΣ\u1C89"), "ài\u0307ßσ\u1C8A");
  EXPECT_EQ(Normalized(R"({"type":"StripAccents"})", "e\u0301a"), "ea");
  EXPECT_EQ(Normalized(R"({"type":"Strip","strip_left":true,"strip_right":false})", "\u3000 a "),
            "a ");
  EXPECT_EQ(Normalized(R"({"type":"Strip","strip_left":true,"strip_right":true})", " \n\t "), "");
  EXPECT_EQ(Normalized(R"({"type":"Prepend","prepend":"▁"})", "a"), "▁a");
  EXPECT_EQ(Normalized(R"({"type":"Prepend","prepend":"▁"})", ""), "");
  EXPECT_EQ(Normalized(R"({"type":"Replace","pattern":{"String":" "},"content":"▁"})", "a b"),
            "a▁b");
  EXPECT_EQ(Normalized(R"({"type":"Replace","pattern":{"Regex":"\\s+"},"content":""})", "a \n b"),
            "ab");
  EXPECT_EQ(Normalized(R"({"type":"ByteLevel"})", " é"), "ĠÃ©");
  EXPECT_EQ(Normalized(R"({"type":"Nmt"})", "a\u0001b\tc\u200Bd"), "ab c d");
  EXPECT_EQ(Normalized(R"({"type":"Sequence","normalizers":[{"type":"Lowercase"},
                          {"type":"Prepend","prepend":"A"}]})",
                       "B"),
            "Ab");
}

TEST(Normalizer, RefusesRunawayGrowth) {
  const Json doubling =
      Json::parse(R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})");
  const Json chain = {{"type", "Sequence"}, {"normalizers", std::vector<Json>(40, doubling)}};
  EXPECT_THROW(Normalized(chain.dump(), "aaaaaaaa"), CapacityError);
}

TEST(Normalizer, NamesWhatItRefuses) {
  const auto error = [](const std::string& json) {
    return ErrorOf([](const Json& j, const char* w) { LoadNormalizer(j, w); }, json);
  };
  EXPECT_THAT(error(R"({"type":"Precompiled"})"), HasSubstr("\"Precompiled\" is not supported"));
  EXPECT_THAT(error("{}"), HasSubstr("part.type: missing"));
  EXPECT_THAT(error("[]"), HasSubstr("part.type: missing"));
  EXPECT_THAT(error(R"({"type":3})"), HasSubstr("part.type: 3 is not a string"));
  EXPECT_THAT(error(R"({"type":"Prepend"})"), HasSubstr("part.prepend: missing"));
  EXPECT_THAT(error(R"({"type":"Strip","strip_left":"x"})"), HasSubstr("strip_left"));
  EXPECT_THAT(error(R"({"type":"Sequence","normalizers":{}})"), HasSubstr("not an array"));
  EXPECT_THAT(error(R"({"type":"Sequence","normalizers":[{"type":"X"}]})"),
              HasSubstr("part.normalizers[0].type"));
  EXPECT_THAT(error(R"({"type":"Replace","pattern":"a","content":""})"), HasSubstr("pattern"));
  EXPECT_THAT(error(R"({"type":"Replace","pattern":{"Regex":"("},"content":""})"),
              HasSubstr("pattern.Regex"));
  std::string deep = R"({"type":"NFC"})";
  for (int i = 0; i < 40; ++i) deep = R"({"type":"Sequence","normalizers":[)" + deep + "]}";
  EXPECT_THAT(error(deep), HasSubstr("deep"));
}

TEST(PreTokenizer, SplitBehaviors) {
  const auto split = [](const std::string& behavior, bool invert = false) {
    return Cut(R"({"type":"Split","pattern":{"Regex":"-"},"behavior":")" + behavior +
                   R"(","invert":)" + (invert ? "true}" : "false}"),
               "a--bc-");
  };
  EXPECT_THAT(split("Removed"), ElementsAre("a", "bc"));
  EXPECT_THAT(split("Isolated"), ElementsAre("a", "-", "-", "bc", "-"));
  EXPECT_THAT(split("MergedWithPrevious"), ElementsAre("a-", "-", "bc-"));
  EXPECT_THAT(split("MergedWithNext"), ElementsAre("a", "-", "-bc", "-"));
  EXPECT_THAT(split("Contiguous"), ElementsAre("a", "--", "bc", "-"));
  EXPECT_THAT(split("Removed", true), ElementsAre("-", "-", "-"));
}

TEST(PreTokenizer, ByteLevel) {
  EXPECT_THAT(Cut(R"({"type":"ByteLevel","add_prefix_space":false})", "it's é  12"),
              ElementsAre("it", "'s", "ĠÃ©", "Ġ", "Ġ12"));
  EXPECT_THAT(Cut(R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false})", "a b"),
              ElementsAre("ĠaĠb"));
}

TEST(PreTokenizer, Metaspace) {
  const auto metaspace = [](const std::string& fields, bool starts_input, const std::string& text) {
    return Cut(R"({"type":"Metaspace","replacement":"▁",)" + fields + "}", text, starts_input);
  };
  EXPECT_THAT(metaspace(R"("prepend_scheme":"always")", false, "a  b"),
              ElementsAre("▁a", "▁", "▁b"));
  EXPECT_THAT(metaspace(R"("prepend_scheme":"first","split":false)", true, "a b"),
              ElementsAre("▁a▁b"));
  EXPECT_THAT(metaspace(R"("prepend_scheme":"first","split":false)", false, "a b"),
              ElementsAre("a▁b"));
  EXPECT_THAT(metaspace(R"("prepend_scheme":"never")", true, "a b "), ElementsAre("a", "▁b", "▁"));
  EXPECT_THAT(metaspace(R"("prepend_scheme":"always")", true, " a"), ElementsAre("▁a"));
}

TEST(PreTokenizer, Classes) {
  EXPECT_THAT(Cut(R"({"type":"Whitespace"})", "a_1, e\u0301!"),
              ElementsAre("a_1", ",", "e\u0301", "!"));
  EXPECT_THAT(Cut(R"({"type":"WhitespaceSplit"})", "\u00a0a, b\n"), ElementsAre("a,", "b"));
  EXPECT_THAT(Cut(R"({"type":"Digits","individual_digits":true})", "a12²"),
              ElementsAre("a", "1", "2", "²"));
  EXPECT_THAT(Cut(R"({"type":"Digits"})", "a12b"), ElementsAre("a", "12", "b"));
  EXPECT_THAT(Cut(R"({"type":"Punctuation"})", "a+。b"), ElementsAre("a", "+", "。", "b"));
  EXPECT_THAT(Cut(R"({"type":"CharDelimiterSplit","delimiter":"é"})", "aébé"),
              ElementsAre("a", "b"));
  EXPECT_THAT(Cut(R"({"type":"FixedLength","length":2})", "éaé日b"), ElementsAre("éa", "é日", "b"));
}

TEST(PreTokenizer, NamesWhatItRefuses) {
  const auto error = [](const std::string& json) {
    return ErrorOf([](const Json& j, const char* w) { LoadPreTokenizer(j, w); }, json);
  };
  EXPECT_THAT(error(R"({"type":"UnicodeScripts"})"), HasSubstr("\"UnicodeScripts\""));
  EXPECT_THAT(error(R"({"type":"Split","pattern":{"String":"a"},"behavior":"Odd"})"),
              HasSubstr("behavior: \"Odd\""));
  EXPECT_THAT(error(R"({"type":"Metaspace","replacement":"ab"})"), HasSubstr("one character"));
  EXPECT_THAT(error(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"x"})"),
              HasSubstr("prepend_scheme: \"x\""));
  EXPECT_THAT(error(R"({"type":"Metaspace","replacement":"_","add_prefix_space":false})"),
              HasSubstr("contradicts"));
  EXPECT_THAT(error(R"({"type":"FixedLength","length":0})"), HasSubstr("length"));
  EXPECT_THAT(error(R"({"type":"FixedLength","length":-3})"), HasSubstr("length"));
}

TEST(PostProcessor, Templates) {
  const PostProcessor bert = LoadPostProcessor(
      Json::parse(R"({"type":"BertProcessing","cls":["c",1],"sep":["s",2]})"), "t");
  EXPECT_THAT(bert.Apply({7, 8}, true), ElementsAre(1, 7, 8, 2));
  EXPECT_THAT(bert.Apply({7, 8}, false), ElementsAre(7, 8));
  const PostProcessor chain =
      LoadPostProcessor(Json::parse(R"({"type":"Sequence","processors":[{"type":"ByteLevel"},
        {"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}},
         {"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
         "special_tokens":{"x":{"id":"x","ids":[4,5],"tokens":["x","y"]}}}]})"),
                        "t");
  EXPECT_THAT(chain.Apply({7}, true), ElementsAre(4, 5, 7, 7));
  EXPECT_THAT(chain.Apply({}, true), ElementsAre(4, 5));
  EXPECT_THAT(chain.AddedIds(), ElementsAre(4, 5));
  EXPECT_THAT(PostProcessor().Apply({}, true), IsEmpty());
}

TEST(PostProcessor, NamesWhatItRefuses) {
  const auto error = [](const std::string& json) {
    return ErrorOf([](const Json& j, const char* w) { LoadPostProcessor(j, w); }, json);
  };
  const std::string bert = R"({"type":"BertProcessing","cls":["c",1],"sep":["s",2]})";
  EXPECT_THAT(error(R"({"type":"New"})"), HasSubstr("\"New\""));
  EXPECT_THAT(error(R"({"type":"Sequence","processors":[)" + bert + "," + bert + "]}"),
              HasSubstr("processors[1]: a second"));
  EXPECT_THAT(error(R"({"type":"BertProcessing","cls":"c","sep":["s",2]})"), HasSubstr("cls"));
  EXPECT_THAT(error(R"({"type":"BertProcessing","cls":["c",-1],"sep":["s",2]})"),
              HasSubstr("outside"));
  EXPECT_THAT(error(R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"B"}}]})"),
              HasSubstr("\"B\""));
  EXPECT_THAT(error(R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}],
                        "special_tokens":{}})"),
              HasSubstr("special_tokens[\"x\"]: missing"));
  EXPECT_THAT(error(R"({"type":"TemplateProcessing","single":["A"]})"), HasSubstr("neither"));
}

TEST(Decoder, Parts) {
  EXPECT_EQ(Decoded(R"({"type":"ByteLevel"})", {"Ġ", "Ã", "©x", "日"}), " éx日");
  EXPECT_EQ(Decoded(R"({"type":"ByteFallback"})", {"<0xC3>", "<0xA9>", "a", "<0xC3>", "<0x41>"}),
            "éa\uFFFD\uFFFD");
  EXPECT_EQ(Decoded(R"({"type":"ByteFallback"})", {"<0xZZ>", "<0x4>", "<0x41>"}), "<0xZZ><0x4>A");
  EXPECT_EQ(Decoded(R"({"type":"Metaspace","replacement":"▁"})", {"▁a", "▁b▁"}), "a b ");
  EXPECT_EQ(
      Decoded(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"never"})", {"▁a", "▁b"}),
      " a b");
  EXPECT_EQ(Decoded(R"({"type":"BPEDecoder","suffix":"</w>"})", {"a</w>", "b", "c</w>"}), "a bc");
  EXPECT_EQ(Decoded(R"({"type":"Strip","content":" ","start":1,"stop":1})", {"  a ", " ", "b  "}),
            " ab ");
  EXPECT_EQ(Decoded(R"({"type":"Sequence","decoders":[{"type":"Fuse"},
                        {"type":"Strip","content":" ","start":1,"stop":2}]})",
                    {" ", " a ", " ", " "}),
            " a ");
  EXPECT_EQ(Decoded(R"({"type":"Sequence","decoders":[{"type":"Fuse"},
                        {"type":"Replace","pattern":{"String":"aba"},"content":"X"}]})",
                    {"a", "b", "ab", "a", "aba"}),
            "XbaX");
  EXPECT_EQ(Decoded(R"({"type":"Sequence","decoders":[]})", {"a", "b"}), "ab");
}

// Each decoder emits text as soon as it is certain, not only at the end.
TEST(Decoder, PassesOnEarly) {
  const auto fallback = LoadDecoder(
      Json::parse(R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},
        "content":" "},{"type":"ByteFallback"},{"type":"Fuse"},
        {"type":"Strip","content":" ","start":1,"stop":0}]})"),
      "t");
  DecodeChain chain(*fallback);
  chain.Put("▁a");
  EXPECT_EQ(chain.Take(), "a");
  chain.Put("<0xC3>");
  EXPECT_EQ(chain.Take(), "");
  chain.Put("<0xA9>");
  EXPECT_EQ(chain.Take(), "");  // a third byte could still make the run invalid
  chain.Put("▁b");
  EXPECT_EQ(chain.Take(), "é b");
  const auto bytes = LoadDecoder(Json::parse(R"({"type":"ByteLevel"})"), "t");
  DecodeChain byte_chain(*bytes);
  byte_chain.Put("aÃ");
  EXPECT_EQ(byte_chain.Take(), "a");
  byte_chain.Put("©");
  EXPECT_EQ(byte_chain.Take(), "é");
}

TEST(Decoder, NamesWhatItRefuses) {
  const auto error = [](const std::string& json) {
    return ErrorOf([](const Json& j, const char* w) { LoadDecoder(j, w); }, json);
  };
  EXPECT_THAT(error(R"({"type":"CTC"})"), HasSubstr("\"CTC\""));
  EXPECT_THAT(error(R"({"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteFallback"}]})"),
              HasSubstr("decoders[1].type"));
  EXPECT_THAT(error(R"({"type":"Strip","content":"ab"})"), HasSubstr("one character"));
  EXPECT_THAT(error(R"({"type":"Strip","content":"a","start":99999999})"), HasSubstr("start"));
}

TEST(Unicode, Classes) {
  EXPECT_TRUE(IsWhitespace(0x85) && IsWhitespace(0x3000) && !IsWhitespace(0x180E) &&
              !IsWhitespace(0x200B));
  EXPECT_TRUE(IsWordCharacter('_') && IsWordCharacter(0x301) && IsWordCharacter(0x200D) &&
              IsWordCharacter(0x24B6) && !IsWordCharacter('-') && !IsWordCharacter(0x1F600));
  EXPECT_TRUE(IsNumeric(0xBD) && IsNumeric(0x2167) && !IsNumeric('a'));
  EXPECT_TRUE(IsPunctuation('$') && IsPunctuation(0x3002) && !IsPunctuation(0x20AC));
}

TEST(Placeholder, EveryTextIsItsBytes) {
  const auto tokenizer = PlaceholderTokenizer(1000);
  EXPECT_EQ(tokenizer->vocab_size(), 1000);
  EXPECT_THAT(tokenizer->Encode("a \xC3\xA9"), ElementsAre('a', ' ', 0xC3, 0xA9));
  std::string text;
  for (int c = 1; c < 128; ++c) text += static_cast<char>(c);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text), false), text);
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{'x', 256, 999}, false), "x 256 999");
  EXPECT_THROW(PlaceholderTokenizer(255), InvalidArgument);
}

TEST(Placeholder, ChatsHaveALineAMessage) {
  EXPECT_EQ(PlaceholderTemplate().Apply(
                {{{"role", "system"}, {"content", "x"}}, {{"role", "user"}, {"content", "y"}}},
                {.add_generation_prompt = true}),
            "system: x\nuser: y\nassistant:");
}

}  // namespace
}  // namespace litecache::tokenizer

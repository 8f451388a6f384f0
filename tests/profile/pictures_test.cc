#include "profile/pictures.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "expect_error.h"
#include "io/file.h"
#include "profile/png.h"
#include "profile/svg.h"
#include "temporary_directory.h"

namespace litecache::profile {
namespace {

TEST(PngTest, Base64IsTheStandards) {
  // RFC 4648, section 10.
  EXPECT_EQ(EncodeBase64(""), "");
  EXPECT_EQ(EncodeBase64("f"), "Zg==");
  EXPECT_EQ(EncodeBase64("fo"), "Zm8=");
  EXPECT_EQ(EncodeBase64("foo"), "Zm9v");
  EXPECT_EQ(EncodeBase64("foobar"), "Zm9vYmFy");
}

TEST(PngTest, HasTheFormatsChecksums) {
  const std::string png = EncodePng({255, 0, 0, 0, 255, 0}, 2, 1);
  EXPECT_TRUE(png.starts_with("\x89PNG\r\n\x1a\n"));
  // The last chunk of every PNG file, with its known checksum.
  EXPECT_TRUE(png.ends_with(std::string("\0\0\0\0IEND\xae\x42\x60\x82", 12)));
  // zlib's own Adler-32 of the row (a filter byte, two pixels): a = 1 + 255 + 255, b = the sum of
  // its prefixes.
  const uint32_t a = 1 + 255 + 255, b = 1 + (1 + 255) + 256 + 256 + 256 + 511 + 511;
  std::string checksum;
  for (const uint32_t half : {b, a}) {
    checksum += static_cast<char>(half >> 8);
    checksum += static_cast<char>(half & 0xff);
  }
  EXPECT_NE(png.find(checksum), std::string::npos);
}

TEST(SvgTest, EscapesAndScales) {
  Svg svg(10, 10);
  svg.Text(1, 1, 9, "a < b & \"c\"");
  EXPECT_NE(svg.Finish().find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_EQ(ScaleColour(-3).ToString(), ScaleColour(0).ToString());
  EXPECT_EQ(ScaleColour(7).ToString(), "#fde725");
  EXPECT_TRUE(ScaleColour(0).dark());
  EXPECT_FALSE(ScaleColour(1).dark());
}

TEST(PicturesTest, WritesEveryPicture) {
  ProfilerResult result;
  kv::Profile& p = result.profile;
  p.layers = 2;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.head_dim = 4;
  p.importance = {0, 0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 1};
  p.similarity.assign(4, 0.5f);
  p.tau_grid = {-1, 0.5f, 1};
  p.kept = p.kept_predicted = {0.5f, 0.995f, 1, 0.9f, 0.9f, 1, 0.1f, 0.2f, 1, 0.99f, 1, 1};
  p.hits = p.hits_predicted = {1, 0.6f, 0, 1, 0.5f, 0, 1, 0.4f, 0, 1, 0.3f, 0};
  result.pictures.heat_maps.push_back({1, 2, 3, {1, 0.5f, -0.25f, 0.5f, 1, 0, -0.25f, 0, 1}});
  result.pictures.pairs = {{0.5f, 0.75f, 0}, {-0.5f, 0.25f, 1}};
  const testing::TemporaryDirectory directory;
  const auto names = WritePictures(result, {}, directory.path() / "new");
  EXPECT_EQ(names.size(), 7u);
  for (const std::string& name : names) {
    const std::string text = io::ReadTextFile(directory.path() / "new" / name);
    if (!name.ends_with(".svg")) continue;
    EXPECT_TRUE(text.starts_with("<svg ")) << name;
    EXPECT_TRUE(text.ends_with("</svg>\n")) << name;
    EXPECT_EQ(text.find("nan"), std::string::npos) << name;
  }
  const auto json =
      nlohmann::json::parse(io::ReadTextFile(directory.path() / "new" / "pictures.json"));
  EXPECT_EQ(json["thresholds"], (std::vector<double>{0.5, 1, 1, -1}));
  EXPECT_NEAR(json["hits"][0].get<double>(), 0.6, 1e-6);
  EXPECT_EQ(json["overlap"].size(), 2u);
  EXPECT_ERROR(WritePictures(result, {}, "/proc/none"), FileError, "/proc/none");
}

}  // namespace
}  // namespace litecache::profile

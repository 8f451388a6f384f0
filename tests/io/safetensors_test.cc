#include "io/safetensors.h"

#include <cstring>

#include "base/error.h"
#include "expect_error.h"
#include "safetensors_bytes.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::io {
namespace {

using ::litecache::testing::SafetensorsBytes;
using ::litecache::testing::SafetensorsWithLength;
using ::litecache::testing::TemporaryDirectory;

std::map<std::string, TensorInfo> Parse(const std::string& bytes) {
  return ParseSafetensors({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()},
                          bytes.size(), "w.safetensors");
}

TEST(SafetensorsTest, ReadsTensorsOfAFile) {
  const TemporaryDirectory directory;
  const float values[6] = {1, -2, 3, -4, 5, 6.5f};
  std::string data(reinterpret_cast<const char*>(values), sizeof(values));
  data += "\x01\x02\x03";
  const Safetensors file(directory.Write(
      "w.safetensors",
      SafetensorsBytes(R"({"__metadata__":{"format":"pt"},)"
                       R"("b":{"dtype":"U8","shape":[3],"data_offsets":[24,27]},)"
                       R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                       R"("none":{"dtype":"F16","shape":[0,7],"data_offsets":[27,27]},)"
                       R"("scalar":{"dtype":"I8","shape":[],"data_offsets":[27,28]}}   )",
                       data + "\x07")));
  ASSERT_EQ(file.tensors().size(), 4u);
  const TensorInfo& a = file.tensors().at("a");
  EXPECT_EQ(a.dtype, "F32");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a.ToString(), "F32 [2, 3]");
  EXPECT_EQ(a.bytes(), sizeof(values));
  EXPECT_EQ(std::memcmp(file.Data(a), values, sizeof(values)), 0);
  EXPECT_EQ(std::memcmp(file.Data(file.tensors().at("b")), "\x01\x02\x03", 3), 0);
  EXPECT_EQ(*file.Data(file.tensors().at("scalar")), std::byte{7});
  EXPECT_EQ(file.tensors().at("none").bytes(), 0u);
}

TEST(SafetensorsTest, RefusesHostileHeaders) {
  const auto one = [](const std::string& entry) {
    return SafetensorsBytes("{\"t\":" + entry + "}", "12345678");
  };
  EXPECT_ERROR(Parse(""), FileError, "w.safetensors", "too few");
  EXPECT_ERROR(Parse("1234567"), FileError, "too few");
  EXPECT_ERROR(Parse(SafetensorsWithLength(UINT64_MAX, "{}", "")), FileError, "header of");
  EXPECT_ERROR(Parse(SafetensorsWithLength(100'000'001, "{}", "")), FileError, "at most 100000000");
  EXPECT_ERROR(Parse(SafetensorsWithLength(3, "{}", "")), FileError, "truncated");
  EXPECT_ERROR(Parse(SafetensorsWithLength(0, "", "")), FileError, "not valid JSON");
  EXPECT_ERROR(Parse(SafetensorsBytes("{\"t\":", "")), FileError, "not valid JSON");
  EXPECT_ERROR(Parse(SafetensorsBytes("[1]", "")), FileError, "no JSON object");
  EXPECT_ERROR(Parse(SafetensorsBytes("\xff\xfe{}", "")), FileError, "not valid JSON");

  EXPECT_ERROR(Parse(one("3")), FileError, "tensor 't'", "not an object");
  EXPECT_ERROR(Parse(one(R"({"shape":[8],"data_offsets":[0,8]})")), FileError, "no 'dtype'");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","data_offsets":[0,8]})")), FileError, "no 'shape'");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":[8]})")), FileError, "no 'data_offsets'");
  EXPECT_ERROR(Parse(one(R"({"dtype":8,"shape":[8],"data_offsets":[0,8]})")), FileError,
               "not a string");
  EXPECT_ERROR(Parse(one(R"({"dtype":"Q4_0","shape":[8],"data_offsets":[0,8]})")), FileError,
               "unknown dtype", "Q4_0");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":8,"data_offsets":[0,8]})")), FileError, "shape");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":[-8],"data_offsets":[0,8]})")), FileError, "-8");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":[8.0],"data_offsets":[0,8]})")), FileError,
               "8.0");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":["8"],"data_offsets":[0,8]})")), FileError,
               "\"8\"");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8,9]})")), FileError,
               "data_offsets");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":[8],"data_offsets":[0]})")), FileError,
               "data_offsets");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":[8],"data_offsets":[0,"8"]})")), FileError,
               "data offset");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":[8],"data_offsets":[8,0]})")), FileError,
               "outside");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})")), FileError,
               "outside", "truncated");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":[8],"data_offsets":[0,18446744073709551615]})")),
               FileError, "outside");
  EXPECT_ERROR(Parse(one(R"({"dtype":"F32","shape":[8],"data_offsets":[0,8]})")), FileError,
               "takes 32 bytes", "hold 8");
  EXPECT_ERROR(Parse(one(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})")), FileError,
               "whole bytes");
  // 2^62 * 2^62 elements; 2^61 of 8 bytes wrap to 0 bits: neither may pass for an empty tensor.
  EXPECT_ERROR(
      Parse(one(
          R"({"dtype":"U8","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,0]})")),
      FileError, "more elements");
  EXPECT_ERROR(Parse(one(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})")),
               FileError, "more elements");
  EXPECT_ERROR(Parse(one(R"({"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,0]})")),
               FileError, "shape entry");
}

TEST(SafetensorsTest, RefusesOverlapsGapsAndDuplicates) {
  const std::string data = "0123456789";
  EXPECT_ERROR(Parse(SafetensorsBytes(R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},)"
                                      R"("b":{"dtype":"U8","shape":[5],"data_offsets":[5,10]}})",
                                      data)),
               FileError, "'a' and 'b' overlap");
  EXPECT_ERROR(Parse(SafetensorsBytes(R"({"a":{"dtype":"U8","shape":[10],"data_offsets":[0,10]},)"
                                      R"("b":{"dtype":"U8","shape":[10],"data_offsets":[0,10]}})",
                                      data)),
               FileError, "overlap");
  EXPECT_ERROR(Parse(SafetensorsBytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                      R"("b":{"dtype":"U8","shape":[5],"data_offsets":[5,10]}})",
                                      data)),
               FileError, "1 bytes before tensor 'b'");
  EXPECT_ERROR(
      Parse(SafetensorsBytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", data)),
      FileError, "6 bytes after the last tensor");
  EXPECT_ERROR(Parse(SafetensorsBytes(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                                      R"("a":{"dtype":"U8","shape":[5],"data_offsets":[5,10]}})",
                                      data)),
               FileError, "'a' occurs twice");
}

// Cutting a valid file anywhere, or flipping any byte of its header, gives an error or a header
// whose tensors are inside the file: never a crash, never bytes outside.
TEST(SafetensorsTest, SurvivesEveryTruncationAndRandomDamage) {
  const std::string good =
      SafetensorsBytes(R"({"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
                       R"("b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})",
                       "01234567890123456789");
  EXPECT_EQ(Parse(good).size(), 2u);
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_THROW(Parse(good.substr(0, length)), FileError) << length;
  }
  auto random = ::litecache::testing::TestRandom();
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = good;
    for (uint64_t i = 0; i <= random() % 3; ++i) {
      bytes[random() % (good.size() - 20)] = static_cast<char>(random());
    }
    try {
      for (const auto& [name, info] : Parse(bytes)) {
        EXPECT_LE(info.begin, info.end);
        EXPECT_LE(info.end, bytes.size());
      }
    } catch (const FileError&) {
    }
  }
}

}  // namespace
}  // namespace litecache::io

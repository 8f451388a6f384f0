#include "io/safetensors_writer.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "expect_error.h"
#include "io/safetensors.h"
#include "temporary_directory.h"

namespace litecache::io {
namespace {

using ::litecache::testing::TemporaryDirectory;

TEST(SafetensorsWriterTest, WritesWhatTheReaderReads) {
  const TemporaryDirectory directory;
  const std::vector<float> values = {1, -2.5f, 3.14159f, 0, 1e-3f, 60000};
  SafetensorsWriter writer;
  writer.Add("z", DType::kF16, {3}, std::span(values).first(3));
  writer.Add("a", DType::kF32, {2, 3}, values);
  writer.Add("b", DType::kBF16, {3, 2}, values);
  writer.Add("none", DType::kF32, {0, 4}, {});
  writer.Add("scalar", DType::kF32, {}, std::span(values).first(1));
  writer.SetMetadata("format", "x");
  writer.SetMetadata("text", "a \"b\" \n {}");
  const auto path = directory.path() / "w.safetensors";
  writer.Write(path);

  const Safetensors file(path);
  ASSERT_EQ(file.tensors().size(), 5u);
  const TensorInfo& a = file.tensors().at("a");
  EXPECT_EQ(a.ToString(), "F32 [2, 3]");
  EXPECT_EQ(std::memcmp(file.Data(a), values.data(), sizeof(float) * values.size()), 0);
  for (size_t i = 0; i < 3; ++i) {
    f16 half;
    std::memcpy(&half, file.Data(file.tensors().at("z")) + 2 * i, 2);
    EXPECT_EQ(half.bits, f16(values[i]).bits);
  }
  EXPECT_EQ(file.tensors().at("b").ToString(), "BF16 [3, 2]");
  EXPECT_EQ(file.tensors().at("none").bytes(), 0u);
  EXPECT_TRUE(file.tensors().at("scalar").shape.empty());
  // Data at a multiple of 8, so that readers may map f32 tensors.
  EXPECT_EQ(file.tensors().at("z").begin % 8, 0u);

  const auto metadata =
      ParseSafetensorsMetadata(file.file().bytes(), file.file().size(), "w.safetensors");
  EXPECT_EQ(metadata,
            (std::map<std::string, std::string>{{"format", "x"}, {"text", "a \"b\" \n {}"}}));
}

TEST(SafetensorsWriterTest, RefusesValuesTheTypeCannotHold) {
  SafetensorsWriter writer;
  EXPECT_ERROR(writer.Add("big", DType::kF16, {1}, std::vector<float>{70000}), InvalidArgument,
               "'big'", "70000", "f16");
  EXPECT_ERROR(writer.Add("nan", DType::kF32, {1}, std::vector<float>{NAN}), InvalidArgument,
               "'nan'");
}

TEST(SafetensorsWriterTest, MetadataOfOtherShapesIsRefused) {
  const auto parse = [](const std::string& header) {
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    bytes += header;
    return ParseSafetensorsMetadata(
        {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, bytes.size(), "m");
  };
  EXPECT_TRUE(parse("{}").empty());
  EXPECT_ERROR(parse(R"({"__metadata__":[]})"), FileError, "m: __metadata__", "not an object");
  EXPECT_ERROR(parse(R"({"__metadata__":{"a":1}})"), FileError, "'a' is 1");
}

TEST(SafetensorsFileTest, PiecesInAnyOrder) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "w.safetensors";
  const std::vector<std::byte> bytes(32, std::byte{7});
  {
    SafetensorsFile file(path, {{"a", "U8", {3}, 3},
                                {"b", "I64", {2}, 16},
                                {"c", "BF16", {1}, 2},
                                {"none", "F32", {0}, 0}});
    file.Write("c", 0, std::span(bytes).first(2));
    file.Write("b", 8, std::span(bytes).first(8));
    file.Write("a", 0, std::span(bytes).first(3));
    file.Write("b", 0, std::span(bytes).subspan(8, 8));
    file.Close();
  }
  const Safetensors file(path);
  for (const auto& [name, info] : file.tensors()) {
    EXPECT_EQ(std::memcmp(file.Data(info), bytes.data(), info.bytes()), 0) << name;
    EXPECT_TRUE(info.bytes() == 0 || info.begin % (name == "b" ? 8 : name == "c" ? 2 : 1) == 0);
  }
  EXPECT_EQ(file.tensors().at("b").ToString(), "I64 [2]");
  EXPECT_ERROR(SafetensorsFile(directory.path() / "no" / "w", {}), FileError,
               "cannot create: No such file");
}

}  // namespace
}  // namespace litecache::io

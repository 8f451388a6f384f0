#include "io/checkpoint.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "expect_error.h"
#include "safetensors_bytes.h"
#include "temporary_directory.h"

namespace litecache::io {
namespace {

using ::litecache::testing::SafetensorsBytes;
using ::litecache::testing::TemporaryDirectory;

std::string One(const std::string& name, const std::string& data) {
  return SafetensorsBytes("{\"" + name + R"(":{"dtype":"U8","shape":[)" +
                              std::to_string(data.size()) + R"(],"data_offsets":[0,)" +
                              std::to_string(data.size()) + "]}}",
                          data);
}

std::string Index(const std::string& map) { return R"({"metadata":{},"weight_map":)" + map + "}"; }

TEST(CheckpointTest, ReadsOneFile) {
  const TemporaryDirectory directory;
  directory.Write("model.safetensors", One("x", "abc"));
  const Checkpoint checkpoint(directory.path());
  const Checkpoint::Tensor tensor = checkpoint.Find("x");
  ASSERT_NE(tensor.info, nullptr);
  EXPECT_EQ(std::memcmp(tensor.data, "abc", 3), 0);
  EXPECT_EQ(*tensor.file, directory.path() / "model.safetensors");
  EXPECT_EQ(checkpoint.Find("y").info, nullptr);
}

TEST(CheckpointTest, SplitsStackedExperts) {
  const TemporaryDirectory directory;
  // 2 experts: gate [1, 3] and up [1, 3]; down [2, 1].
  directory.Write(
      "model.safetensors",
      SafetensorsBytes(R"({"a.experts.gate_up_proj":{"dtype":"U8","shape":[2,2,3],)"
                       R"("data_offsets":[0,12]},"a.experts.down_proj":{"dtype":"U8",)"
                       R"("shape":[2,2,1],"data_offsets":[12,16]},"b.experts.gate_up_proj":)"
                       R"({"dtype":"U8","shape":[2,3,1],"data_offsets":[16,22]},)"
                       R"("c.experts.down_proj":{"dtype":"U8","shape":[0,3,1],)"
                       R"("data_offsets":[22,22]}})",
                       "gggUUUhhhVVVddeexxxxxx"));
  EXPECT_EQ(Checkpoint(directory.path()).tensor_count(), 4u);
  const Checkpoint checkpoint(directory.path(), /*stacked_experts=*/true);
  const auto expect = [&](const char* name, const std::vector<int64_t>& shape,
                          std::string_view data) {
    SCOPED_TRACE(name);
    const Checkpoint::Tensor tensor = checkpoint.Find(name);
    ASSERT_NE(tensor.info, nullptr);
    EXPECT_EQ(tensor.info->shape, shape);
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(tensor.data), data.size()), data);
  };
  expect("a.experts.0.gate_proj.weight", {1, 3}, "ggg");
  expect("a.experts.0.up_proj.weight", {1, 3}, "UUU");
  expect("a.experts.1.gate_proj.weight", {1, 3}, "hhh");
  expect("a.experts.1.up_proj.weight", {1, 3}, "VVV");
  expect("a.experts.0.down_proj.weight", {2, 1}, "dd");
  expect("a.experts.1.down_proj.weight", {2, 1}, "ee");
  EXPECT_EQ(checkpoint.tensor_count(), 10u) << "three rows have no halves, and no experts no parts";
}

TEST(CheckpointTest, ReadsShardsAndReportsProgress) {
  const TemporaryDirectory directory;
  directory.Write("model-1.safetensors", One("x", "abc"));
  directory.Write("model-2.safetensors", One("y", std::string(100'000, 'q')));
  directory.Write("model.safetensors.index.json",
                  Index(R"({"x":"model-1.safetensors","y":"model-2.safetensors"})"));
  const Checkpoint checkpoint(directory.path());
  EXPECT_EQ(checkpoint.tensor_count(), 2u);
  EXPECT_EQ(std::memcmp(checkpoint.Find("x").data, "abc", 3), 0);
  EXPECT_EQ(checkpoint.Find("y").info->bytes(), 100'000u);
  EXPECT_EQ(*checkpoint.Find("y").file, directory.path() / "model-2.safetensors");

  std::vector<int64_t> seen;
  checkpoint.Prefault([&](int64_t done, int64_t total) {
    EXPECT_EQ(total, static_cast<int64_t>(checkpoint.file_bytes()));
    EXPECT_GT(done, seen.empty() ? -1 : seen.back());
    seen.push_back(done);
  });
  EXPECT_EQ(seen.front(), 0);
  EXPECT_EQ(seen.back(), static_cast<int64_t>(checkpoint.file_bytes()));
  EXPECT_THROW(checkpoint.Prefault([](int64_t, int64_t) { throw InvalidArgument("cancelled"); }),
               InvalidArgument);
}

TEST(CheckpointTest, FilesThatAreWrittenAgainDiffer) {
  const TemporaryDirectory directory;
  const auto path = directory.Write("model.safetensors", One("x", "abc"));
  const std::string before = Checkpoint(directory.path()).FileVersions();
  EXPECT_EQ(Checkpoint(directory.path()).FileVersions(), before);
  const auto time = std::filesystem::last_write_time(path);
  directory.Write("model.safetensors", One("x", "abd"));
  std::filesystem::last_write_time(path, time + std::chrono::milliseconds(1));
  EXPECT_NE(Checkpoint(directory.path()).FileVersions(), before);
}

TEST(CheckpointTest, SaysWhatIsMissing) {
  const TemporaryDirectory directory;
  EXPECT_ERROR(Checkpoint(directory.path()), FileError, directory.path().string(),
               "model.safetensors");
  directory.Write("pytorch_model.bin", "x");
  EXPECT_ERROR(Checkpoint(directory.path()), FileError, "pytorch_model.bin", "save_pretrained");
}

TEST(CheckpointTest, RefusesWrongIndexes) {
  const TemporaryDirectory directory;
  directory.Write("a.safetensors", One("x", "abc"));
  const auto index = [&](const std::string& text) {
    directory.Write("model.safetensors.index.json", text);
    return Checkpoint(directory.path());
  };
  EXPECT_ERROR(index("{"), FileError, "index.json:1:2", "not valid JSON");
  EXPECT_ERROR(index("[]"), FileError, "JSON object");
  EXPECT_ERROR(index("{}"), FileError, "'weight_map' is missing");
  EXPECT_ERROR(index(R"({"weight_map":3})"), FileError, "must be an object");
  EXPECT_ERROR(index(Index("{}")), FileError, "empty");
  EXPECT_ERROR(index(Index(R"({"x":1})")), FileError, "'x'", "not a string");
  for (const char* escape : {"../a.safetensors", "/etc/passwd", "..", ".", "", "a\\u0000b"}) {
    EXPECT_ERROR(index(Index(std::string(R"({"x":")") + escape + "\"}")), FileError,
                 "not in its directory");
  }
  EXPECT_ERROR(index(Index(R"({"x":"b.safetensors"})")), FileError, "b.safetensors", "1 of the 1",
               "missing");
  EXPECT_ERROR(index(Index(R"({"z":"a.safetensors"})")), FileError, "a.safetensors",
               "tensor 'z' is missing");
  directory.Write("b.safetensors", One("x", "abc"));
  EXPECT_ERROR(index(Index(R"({"x":"a.safetensors","y":"b.safetensors"})")), FileError, "'x'",
               "also in");
  directory.Write("b.safetensors", One("y", "abc"));
  EXPECT_ERROR(index(Index(R"({"x":"b.safetensors","y":"a.safetensors"})")), FileError,
               "is missing, although");
  EXPECT_EQ(index(Index(R"({"x":"a.safetensors","y":"b.safetensors"})")).tensor_count(), 2u);
}

}  // namespace
}  // namespace litecache::io

// Checkpoints that do not match their config give a clear error before any work starts.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "io/file.h"
#include "io/json.h"
#include "reference.h"
#include "temporary_directory.h"

namespace litecache::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class CheckpointErrorsTest : public ::testing::Test {
 protected:
  // Copies a fixture to be damaged.
  void Copy(const std::string& fixture) {
    for (const auto& item : fs::directory_iterator(FixturesDirectory() / fixture)) {
      fs::copy_file(item.path(), path() / item.path().filename(),
                    fs::copy_options::overwrite_existing);
    }
  }
  void EditConfig(const std::function<void(json&)>& edit) {
    json config = io::ReadJsonFile(path() / "config.json");
    edit(config);
    io::WriteFileAtomically(path() / "config.json", config.dump());
  }
  // Rewrites the header of model.safetensors and pads it, keeping the data.
  void EditHeader(const std::function<void(json&)>& edit, size_t padding = 0) {
    const std::string bytes = io::ReadTextFile(path() / "model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    json header = json::parse(bytes.substr(8, length));
    edit(header);
    const std::string text = header.dump() + std::string(padding, ' ');
    length = text.size();
    std::string out(reinterpret_cast<const char*>(&length), 8);
    uint64_t old_length = 0;
    std::memcpy(&old_length, bytes.data(), 8);
    out += text + bytes.substr(8 + old_length);
    io::WriteFileAtomically(path() / "model.safetensors", out);
  }
  std::unique_ptr<Decoder> Load(bool compute_f32 = false) {
    return LoadDecoder(device_, path(), {.dtype = InF32(compute_f32)});
  }
  const fs::path& path() const { return directory_.path(); }

  ::litecache::testing::TemporaryDirectory directory_;
  CpuDevice device_{2};
};

TEST_F(CheckpointErrorsTest, MissingTensors) {
  Copy("llama");
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  EditHeader([&](json& header) {
    header["renamed"] = header[name];
    header.erase(name);
  });
  EXPECT_ERROR(Load(), FileError, path().string(), name, "[112, 64]", "missing");
}

TEST_F(CheckpointErrorsTest, WrongShapes) {
  Copy("llama");
  EditConfig([](json& config) { config["intermediate_size"] = 120; });
  EXPECT_ERROR(Load(), FileError, "model.safetensors", "model.layers.0.mlp.gate_proj.weight",
               "BF16 [112, 64]", "[120, 64]");
  Copy("llama");
  EditConfig([](json& config) { config["vocab_size"] = 193; });
  EXPECT_ERROR(Load(), FileError, "model.embed_tokens.weight", "[192, 64]", "[193, 64]");
  Copy("llama");
  EditConfig([](json& config) { config["num_hidden_layers"] = 4; });
  EXPECT_ERROR(Load(), FileError, "model.layers.3.input_layernorm.weight", "missing");
  Copy("llama");
  EditConfig([](json& config) { config["attention_bias"] = true; });
  EXPECT_ERROR(Load(), FileError, "model.layers.0.self_attn.q_proj.bias", "missing");
  Copy("llama");
  EditHeader([](json& header) { header["model.norm.weight"]["shape"] = {8, 8}; });
  EXPECT_ERROR(Load(), FileError, "model.norm.weight", "[8, 8]", "[64]");
}

TEST_F(CheckpointErrorsTest, WrongDtypes) {
  Copy("llama");
  EditHeader([](json& header) { header["lm_head.weight"]["dtype"] = "I16"; });
  EXPECT_ERROR(Load(), Unsupported, "lm_head.weight", "I16", "BF16");
  EXPECT_ERROR(Load(true), Unsupported, "lm_head.weight", "I16");
}

TEST_F(CheckpointErrorsTest, TruncatedFiles) {
  Copy("llama");
  fs::resize_file(path() / "model.safetensors", fs::file_size(path() / "model.safetensors") - 1);
  EXPECT_ERROR(Load(), FileError, "model.safetensors", "truncated");
  fs::resize_file(path() / "model.safetensors", 100);
  EXPECT_ERROR(Load(), FileError, "model.safetensors", "truncated");
  fs::resize_file(path() / "model.safetensors", 0);
  EXPECT_ERROR(Load(), FileError, "model.safetensors", "too few");
  fs::remove(path() / "model.safetensors");
  EXPECT_ERROR(Load(), FileError, path().string(), "model.safetensors");
}

TEST_F(CheckpointErrorsTest, MissingShard) {
  Copy("llama-sharded");
  EXPECT_NO_THROW(Load());
  fs::remove(path() / "model-00002-of-00003.safetensors");
  EXPECT_ERROR(Load(), FileError, "model-00002-of-00003.safetensors", "1 of the 3 files");
}

// Tensors at odd addresses (which depend on the header's length) can also be read.
TEST_F(CheckpointErrorsTest, MisalignedTensors) {
  const Reference reference("llama");
  for (const size_t padding : {0, 1, 2, 3}) {
    Copy("llama");
    EditHeader([](json&) {}, padding);
    const auto decoder = Load();
    Runner runner(device_, *decoder);
    const auto logits = runner.Prefill(runner.Create(), reference.prompt, 640, reference.positions);
    EXPECT_LT(RelativeError(logits, reference.logits), 2e-2) << padding;
  }
}

// A checkpoint of the bare model has names without "model.".
TEST_F(CheckpointErrorsTest, NamesWithoutPrefix) {
  for (const auto& [fixture, prefix] : {std::pair("qwen2", "model."), std::pair("opt", "model.")}) {
    Copy(fixture);
    EditHeader([&, prefix = std::string(prefix)](json& header) {
      json renamed;
      for (const auto& [name, entry] : header.items()) {
        renamed[name.starts_with(prefix) ? name.substr(prefix.size()) : name] = entry;
      }
      header = renamed;
    });
    const Reference reference(fixture);
    const auto decoder = Load(true);
    Runner runner(device_, *decoder);
    EXPECT_LT(
        RelativeError(runner.Prefill(runner.Create(), reference.prompt, 640, reference.positions),
                      reference.logits),
        1e-4)
        << fixture;
  }
}

TEST_F(CheckpointErrorsTest, ProgressReachesTheEndAndCancels) {
  for (const bool compute_f32 : {false, true}) {
    int64_t last = -1;
    int64_t total = 0;
    LoadOptions options;
    options.dtype = InF32(compute_f32);
    options.progress = [&](int64_t done, int64_t all) {
      EXPECT_GE(done, last);
      EXPECT_LE(done, all);
      last = done;
      total = all;
    };
    LoadDecoder(device_, FixturesDirectory() / "llama-sharded", options);
    EXPECT_EQ(last, total);
    EXPECT_GT(total, 0);
    options.progress = [](int64_t, int64_t) { throw InvalidArgument("cancelled"); };
    EXPECT_ERROR(LoadDecoder(device_, FixturesDirectory() / "llama", options), InvalidArgument,
                 "cancelled");
  }
}

}  // namespace
}  // namespace litecache::model

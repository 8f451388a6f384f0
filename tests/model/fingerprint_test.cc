#include "model/fingerprint.h"

#include <fstream>
#include <set>

#include "base/error.h"
#include "expect_error.h"
#include "io/file.h"
#include "source_directory.h"
#include "temporary_directory.h"

namespace litecache::model {
namespace {

using ::litecache::testing::TemporaryDirectory;
namespace fs = std::filesystem;

const fs::path kModels = SourceDirectory() / "tests/fixtures/models";

TEST(FingerprintTest, TellsModelsApart) {
  std::set<std::string> seen;
  size_t models = 0;
  for (const auto& entry : fs::directory_iterator(kModels)) {
    // llama-sharded has the same weights as llama, in shards: compared below.
    if (!fs::exists(entry.path() / "model.safetensors")) continue;
    const std::string fingerprint = Fingerprint(entry.path());
    EXPECT_EQ(fingerprint.size(), 16u);
    EXPECT_EQ(fingerprint, Fingerprint(entry.path()));
    seen.insert(fingerprint);
    ++models;
  }
  EXPECT_GT(models, 5u);
  EXPECT_EQ(seen.size(), models);
}

TEST(FingerprintTest, DependsOnWeightsAndConfigNotOnNames) {
  const TemporaryDirectory directory;
  const std::string config = io::ReadTextFile(kModels / "llama/config.json");
  std::string weights = io::ReadTextFile(kModels / "llama/model.safetensors");
  directory.Write("config.json", config);
  const fs::path file = directory.Write("model.safetensors", weights);
  const std::string original = Fingerprint(directory.path());
  EXPECT_EQ(original, Fingerprint(kModels / "llama"));

  weights[weights.size() - 10] ^= 1;  // the end of a tensor is sampled
  directory.Write("model.safetensors", weights);
  EXPECT_NE(Fingerprint(directory.path()), original);
  weights[weights.size() - 10] ^= 1;
  directory.Write("model.safetensors", weights);
  EXPECT_EQ(Fingerprint(directory.path()), original);

  std::string renamed = config;
  renamed.insert(renamed.find('{') + 1, "\"_name_or_path\": \"somewhere\",");
  directory.Write("config.json", renamed);
  EXPECT_EQ(Fingerprint(directory.path()), original);
  std::string eps = config;
  const size_t at = eps.find("\"rms_norm_eps\":");
  ASSERT_NE(at, std::string::npos);
  eps.insert(at + 15, " 0.01, \"unused\":");
  directory.Write("config.json", eps);
  EXPECT_NE(Fingerprint(directory.path()), original);

  fs::remove(file);
  EXPECT_ERROR(Fingerprint(directory.path()), FileError, "model.safetensors");
}

}  // namespace
}  // namespace litecache::model

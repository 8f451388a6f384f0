#include "io/hub.h"

#include <cstdlib>
#include <map>
#include <optional>

#include "expect_error.h"
#include "temporary_directory.h"

namespace litecache::io {
namespace {

using ::litecache::testing::TemporaryDirectory;
namespace fs = std::filesystem;

// Sets the variables that select the cache; restores them at the end.
class HubTest : public ::testing::Test {
 protected:
  HubTest() {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      saved_[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
      ::unsetenv(name);
    }
  }
  ~HubTest() override {
    for (const auto& [name, value] : saved_) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
  }
  static void Set(const char* name, const fs::path& value) { ::setenv(name, value.c_str(), 1); }

  const std::string commit_ = "0e9e39f249a16976918f6564b8830bc894c89659";
  TemporaryDirectory directory_;

 private:
  std::map<std::string, std::optional<std::string>> saved_;
};

TEST_F(HubTest, CacheDirectoryFollowsTheEnvironment) {
  Set("HOME", "/home/u");
  EXPECT_EQ(HubCacheDirectory(), "/home/u/.cache/huggingface/hub");
  Set("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(HubCacheDirectory(), "/xdg/huggingface/hub");
  Set("HF_HOME", "~/hf");
  EXPECT_EQ(HubCacheDirectory(), "/home/u/hf/hub");
  Set("HF_HUB_CACHE", "/cache");
  EXPECT_EQ(HubCacheDirectory(), "/cache");
  Set("HF_HUB_CACHE", "");
  EXPECT_EQ(HubCacheDirectory(), "/home/u/hf/hub");
}

TEST_F(HubTest, FindsSnapshots) {
  Set("HF_HUB_CACHE", directory_.path());
  directory_.Write("models--org--name/refs/main", commit_ + "\n");
  directory_.Write("models--org--name/refs/v2", "abc123");
  directory_.Write("models--org--name/snapshots/" + commit_ + "/config.json", "{}");
  directory_.Write("models--org--name/snapshots/abc123/config.json", "{}");
  const fs::path snapshots = directory_.path() / "models--org--name" / "snapshots";
  EXPECT_EQ(ResolveModel("org/name"), snapshots / commit_);
  EXPECT_EQ(ResolveModel("org/name@v2"), snapshots / "abc123");
  EXPECT_EQ(ResolveModel("org/name@" + commit_), snapshots / commit_);
  // A model without an organization, downloaded by commit: one snapshot and no refs.
  directory_.Write("models--gpt.x/snapshots/def/config.json", "{}");
  EXPECT_EQ(ResolveModel("gpt.x"), directory_.path() / "models--gpt.x/snapshots/def");
}

TEST_F(HubTest, DirectoriesComeFirst) {
  Set("HF_HUB_CACHE", directory_.path() / "hub");
  directory_.Write("model/config.json", "{}");
  EXPECT_EQ(ResolveModel((directory_.path() / "model").string()), directory_.path() / "model");
}

// A directory without safetensors stands for the GGUF model in it.
TEST_F(HubTest, GgufModels) {
  Set("HF_HUB_CACHE", directory_.path() / "hub");
  const fs::path file = directory_.Write("model/a.Q4_0-00001-of-00002.gguf", "GGUF");
  directory_.Write("model/a.Q4_0-00002-of-00002.gguf", "GGUF");
  directory_.Write("model/mmproj-a.gguf", "GGUF");
  const std::string model = file.parent_path().string();
  EXPECT_EQ(ResolveModel(file.string()), file);
  EXPECT_EQ(ResolveModel(model), file);
  directory_.Write("model/config.json", "{}");
  EXPECT_EQ(ResolveModel(model), file);
  directory_.Write("model/b.gguf", "GGUF");
  EXPECT_ERROR(ResolveModel(model), FileError, model, "a.Q4_0-00001-of-00002.gguf, b.gguf",
               "name one of these");
  directory_.Write("model/model.safetensors", "");
  EXPECT_EQ(ResolveModel(model), model);
  const fs::path named = directory_.Write("file", "GGUF");
  EXPECT_EQ(ResolveModel(named.string()), named);

  directory_.Write("hub/models--org--g/refs/main", "abc");
  const fs::path cached = directory_.Write("hub/models--org--g/snapshots/abc/g.gguf", "GGUF");
  EXPECT_EQ(ResolveModel("org/g"), cached);
}

TEST_F(HubTest, SaysWhereItLookedAndWhatIsThere) {
  Set("HF_HUB_CACHE", directory_.path() / "hub");
  EXPECT_ERROR(ResolveModel(""), FileError, "no model");
  EXPECT_ERROR(ResolveModel("org/name"), FileError, "org/name",
               (directory_.path() / "hub").string(), "does not exist", "hf download org/name");
  fs::create_directories(directory_.path() / "hub");
  EXPECT_ERROR(ResolveModel("org/name"), FileError, "holds no models");
  directory_.Write("hub/models--a--b--c/refs/main", "x");
  directory_.Write("hub/models--solo/refs/main", "x");
  EXPECT_ERROR(ResolveModel("org/name"), FileError, "a/b--c", "solo");
  EXPECT_ERROR(ResolveModel("a/b--c"), FileError, "no snapshot x", "there is none");
  directory_.Write("hub/models--solo/snapshots/y/config.json", "{}");
  EXPECT_ERROR(ResolveModel("solo"), FileError, "no snapshot x", "there are y");
  fs::create_directories(directory_.path() / "hub/models--solo/snapshots/x");
  EXPECT_ERROR(ResolveModel("solo"), FileError, "neither config.json", "empty");
  directory_.Write("hub/models--solo/snapshots/x/README.md", "");
  EXPECT_ERROR(ResolveModel("solo"), FileError, "neither config.json", "README.md");
  directory_.Write("hub/models--solo/refs/main", "../../../elsewhere");
  EXPECT_ERROR(ResolveModel("solo"), FileError, "does not hold a commit");
  EXPECT_ERROR(ResolveModel(directory_.Write("file", "x").string()), FileError, "is a file");
}

TEST_F(HubTest, NamesNeverLeaveTheCache) {
  Set("HF_HUB_CACHE", directory_.path() / "hub");
  fs::create_directories(directory_.path() / "hub");
  directory_.Write("secret/config.json", "{}");
  for (const char* name : {"../nothing/x", "a/b/c", "/nothing/here", "a/", "/a", "a b", "..",
                           "a/..", "./nothing", "x@../../secret", "x@", "x@/etc", "a/.hidden"}) {
    EXPECT_THROW(ResolveModel(name), FileError) << name;
  }
}

}  // namespace
}  // namespace litecache::io

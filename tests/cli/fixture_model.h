// Complete small model directories for tests: a committed random model with a generated tokenizer
// and chat template. They answer greedily by default.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "temporary_directory.h"

namespace litecache::testing {

// tests/fixtures/models/<name>.
std::filesystem::path FixtureDirectory(const std::string& name);

// The text of a byte-level BPE tokenizer.json of 182 tokens: <unk> 0, <s> 1 (begins every text),
// </s> 2, <|user|> 3, <|assistant|> 4, <|system|> 5; ASCII, some bytes of longer characters, and
// ten merges.
std::string FixtureTokenizer();

// A fixture with that tokenizer and a template "<s><|role|>content</s>...<|assistant|>".
// max_context: written into config.json, so that a generation can be as long as a test needs (not
// possible with learned positions).
class FixtureModel {
 public:
  explicit FixtureModel(int64_t max_context = 1024, const std::string& name = "llama");
  std::string path() const { return directory_.path().string(); }
  const TemporaryDirectory& directory() const { return directory_; }

 private:
  TemporaryDirectory directory_;
};

// The names of all families; each is that of a fixture.
std::vector<std::string> FamilyNames();

// Shared by all tests of a program.
const FixtureModel& SharedModel();
// With a context longer than any test.
const FixtureModel& EndlessModel();

// "1 2 3".
std::string Join(const std::vector<int32_t>& ids);

}  // namespace litecache::testing

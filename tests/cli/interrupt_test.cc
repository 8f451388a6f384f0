// Ctrl-C.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cli/fixture_model.h"
#include "cli/program.h"
#include "source_directory.h"
#include "temporary_directory.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Endless(std::vector<std::string> more = {}) {
  more.insert(more.begin(),
              {"generate", "--model", EndlessModel().path(), "the cat", "-n", "0", "--ignore-eos"});
  return more;
}

TEST(Interrupt, GenerateEndsWithTheSummary) {
  Program program(Endless(), {});
  ASSERT_TRUE(program.WaitForBytes(50)) << program.err();
  program.Signal(SIGINT);
  const auto result = program.Finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("tok/s"));
  EXPECT_TRUE(result.out.ends_with('\n'));
}

TEST(Interrupt, JsonHoldsWhatThereIs) {
  // Nothing shows that generation has started; loading takes milliseconds.
  Program program(Endless({"--json"}), {});
  usleep(2'000'000);
  program.Signal(SIGINT);
  const auto result = program.Finish();
  EXPECT_EQ(result.exit_code, 130);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["stats"]["finish_reason"], "cancelled");
}

// Its output appears once it is whole; until then it lies in a directory beside it.
TEST(Interrupt, AQuantizationLeavesNothing) {
  const TemporaryDirectory directory;
  const auto is_empty = [&] { return std::filesystem::is_empty(directory.path()); };
  const std::string model = (SourceDirectory() / "models/litecache-demo-16m").string();
  for (const auto& [signal, code, name, type] : {std::tuple{SIGINT, 130, "quantized", "w4a16"},
                                                 std::tuple{SIGTERM, 143, "quantized", "w4a16"},
                                                 std::tuple{SIGTERM, 143, "new.gguf", "q4_k"}}) {
    const std::string output = (directory.path() / name).string();
    ProgramResult result;
    // On a busy machine the signal may come too late.
    for (int attempt = 0; attempt < 20 && result.err.find("is not written") == std::string::npos;
         ++attempt) {
      std::filesystem::remove_all(output);
      Program program(
          {"quantize", "--model", model, "-o", output, "--type", type, "--threads", "1"}, {});
      for (int i = 0; i < 30'000 && is_empty(); ++i) usleep(1'000);
      ASSERT_FALSE(is_empty()) << program.err();
      program.Signal(signal);
      result = program.Finish();
    }
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr("is not written"));
    EXPECT_TRUE(is_empty());
  }
}

}  // namespace
}  // namespace litecache::testing

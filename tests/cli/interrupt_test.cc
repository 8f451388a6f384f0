// Ctrl-C.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/fixture_model.h"
#include "cli/program.h"

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

}  // namespace
}  // namespace litecache::testing

#include "cli/option_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cli/values.h"

namespace litecache::cli {
namespace {

// The error for `arguments` if `declare` has declared one option.
std::string ErrorOf(const std::function<void(CLI::App&)>& declare, const std::string& arguments) {
  CLI::App app;
  declare(app);
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return DescribeOptionError(app, error);
  }
  return "no error";
}

TEST(OptionErrors, SayWhatAValueHasToBe) {
  int port = 0;
  const auto declare_port = [&](CLI::App& app) {
    app.add_option("-p,--port", port, "")->type_name("PORT");
  };
  EXPECT_EQ(ErrorOf(declare_port, "--port 80"), "no error");
  EXPECT_EQ(ErrorOf(declare_port, "--port many"), "--port: 'many' is not a port, 0 to 65535");

  ByteCount bytes;
  const auto declare_bytes = [&](CLI::App& app) {
    app.add_option("--memory", bytes, "")->type_name("SIZE");
  };
  EXPECT_EQ(ErrorOf(declare_bytes, "--memory 3GiB"), "no error");
  for (const char* wrong : {"potato", "3Gigs", "-1"}) {
    EXPECT_EQ(ErrorOf(declare_bytes, std::string("--memory=") + wrong),
              std::string("--memory: '") + wrong + "' is not a size; write e.g. 48GiB or 512MiB");
  }

  TokenCount tokens;
  const auto declare_tokens = [&](CLI::App& app) {
    app.add_option("--context", tokens, "")->type_name("LENGTH");
  };
  EXPECT_EQ(ErrorOf(declare_tokens, "--context 16q"), "--context: '16q' is not a value for LENGTH");
}

TEST(OptionErrors, SayWhatThereIs) {
  std::string word;
  double share = 0;
  const auto declare = [&](CLI::App& app) {
    app.add_option("--policy", word, "")->check(CLI::IsMember({"full", "litecache"}));
    app.add_option("--ratio", share, "")->check(CLI::Range(0.0, 1.5));
  };
  EXPECT_EQ(ErrorOf(declare, "--policy full --ratio 1.5"), "no error");
  EXPECT_EQ(ErrorOf(declare, "--policy ful"), "--policy: 'ful' is not one of full, litecache");
  EXPECT_EQ(ErrorOf(declare, "--ratio 2"), "--ratio: '2' is not a number from 0 to 1.5");
  // Messages that need no rewriting are unchanged.
  EXPECT_THAT(ErrorOf(declare, "--policy"), testing::HasSubstr("--policy: 1 required"));
}

}  // namespace
}  // namespace litecache::cli

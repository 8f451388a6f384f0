#include "cli/option_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/options.h"

namespace litecache::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The options that result from `arguments`.
EngineOptions Parse(const std::string& arguments) {
  CLI::App app;
  EngineFlags flags;
  flags.DeclareRun(app);
  flags.DeclareGroup(app, "Scheduling");
  flags.DeclarePrefix(app, false);
  app.parse(arguments);
  return flags.ToEngineOptions();
}

std::string ErrorOf(const std::string& arguments) {
  try {
    Parse(arguments);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> UnusedOf(const std::string& arguments) {
  CLI::App app;
  EngineFlags flags;
  flags.DeclareRun(app);
  app.parse(arguments);
  return flags.Unused();
}

TEST(OptionFlags, NothingGivenIsTheDefault) {
  for (const auto& option : EngineOptionTable()) {
    EXPECT_EQ(option.get(Parse("")), option.get(EngineOptions())) << option.name;
  }
}

TEST(OptionFlags, ValuesOfEveryKind) {
  const EngineOptions options = Parse(
      "-t 3 --device cuda:1 --memory 48GiB -c 16k --weights-on-device 50% --prefix-cache on "
      "--prefix-store kept --prefill-chunk-beside -1 --kv-policy kvpr --kv-budget 5% --sink=7 "
      "--eta -0.5 --no-delta --resident-full --resident-heads formula --kvpr-split -1 "
      "--no-kvpr-chunked --hata-bits 128 --batch-groups 2");
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.device, "cuda:1");
  EXPECT_EQ(options.memory, uint64_t{48} << 30);
  EXPECT_EQ(options.max_context, 16384);
  EXPECT_EQ(options.weights_on_device, 0.5);
  EXPECT_TRUE(options.prefix_cache);
  EXPECT_EQ(options.prefix_store, "kept");
  EXPECT_EQ(options.prefill_chunk_beside_decode, -1);
  EXPECT_EQ(options.kv.policy, "kvpr");
  EXPECT_EQ(options.kv.budget.share, 0.05);
  EXPECT_EQ(options.kv.sink_tokens, 7);
  EXPECT_EQ(options.kv.eta, -0.5);
  EXPECT_FALSE(options.kv.delta_update);
  EXPECT_TRUE(options.kv.resident_full_attention);
  EXPECT_EQ(options.kv.resident_heads, "formula");
  EXPECT_EQ(options.kv.kvpr.split, -1);
  EXPECT_FALSE(options.kv.kvpr.chunked);
  EXPECT_EQ(options.kv.hata_bits, 128);
  EXPECT_EQ(options.kv.batch_groups, 2);
}

TEST(OptionFlags, SharesAreReadAsPeopleWriteThem) {
  for (const auto& [text, share] : std::vector<std::pair<std::string, double>>{
           {"50%", 0.5}, {"0.25", 0.25}, {"0", 0}, {"100%", 1}, {"1", 1}}) {
    EXPECT_EQ(Parse("--weights-on-device " + text).weights_on_device, share);
  }
  for (const char* text : {"%", "101%", "1.01", "-1%", "half", "50%x", "nan", "50%%"}) {
    EXPECT_EQ(
        ErrorOf(std::string("--weights-on-device ") + text),
        std::string("--weights-on-device: '") + text + "' is not a share: 0% to 100%, or 0 to 1");
  }
}

TEST(OptionFlags, ErrorsNameTheFlag) {
  EXPECT_EQ(ErrorOf("--memory potato"),
            "--memory: 'potato' is not a size; write e.g. 48GiB or 512MiB");
  EXPECT_EQ(ErrorOf("--weights-on-device 50"),
            "--weights-on-device: '50' is not a share: 0% to 100%, or 0 to 1");
  EXPECT_EQ(ErrorOf("-t 5000"), "--threads: '5000' is not a number from 0 to 4096");
  EXPECT_EQ(ErrorOf("--max-batch 1.5"), "--max-batch: '1.5' is not a whole number that fits");
  EXPECT_EQ(ErrorOf("--eta nan"), "--eta: 'nan' is not a number from -1 to 1");
  EXPECT_EQ(ErrorOf("--dtype f16"), "--dtype: 'f16' is not one of auto, bf16, f32");
  EXPECT_EQ(ErrorOf("--resident-heads some"),
            "--resident-heads: 'some' is not auto, formula, all, none or a number");
  EXPECT_EQ(ErrorOf("--kv-budget 0%"),
            "--kv-budget: '0%' is not a share above 0% and up to 100%; write e.g. 10%, 10%@8k, "
            "0.1, 2048 or auto");
  EXPECT_THAT(ErrorOf("--kv-policy ful"), HasSubstr("--kv-policy: 'ful' is not one of full, "));
  // Options that cannot be combined.
  EXPECT_EQ(ErrorOf("--slots 2 --no-delta"),
            "--slots: 2 needs delta updates, but --delta is off; use 1");
  EXPECT_EQ(ErrorOf("--prefix-store kept"), "--prefix-store kept: it needs --prefix-cache on");
}

TEST(OptionFlags, NamesWhatAPolicyDoesNothingWith) {
  EXPECT_THAT(UnusedOf(""), IsEmpty());
  EXPECT_THAT(UnusedOf("--device-memory 1GiB --threads 2"), IsEmpty());
  EXPECT_THAT(UnusedOf("--kv-budget 5% --retriever quest --no-delta --prefetch 1"),
              ElementsAre("--kv-budget", "--delta", "--prefetch", "--retriever"));
  EXPECT_THAT(UnusedOf("--kv-policy litecache --kv-budget 5% --retriever quest --prefetch 1"),
              IsEmpty());
  EXPECT_THAT(UnusedOf("--kv-policy litecache --kvpr-split 4"), ElementsAre("--kvpr-split"));
  EXPECT_THAT(UnusedOf("--kv-policy kvpr --kvpr-split 4 --host-rows int4"), IsEmpty());
  EXPECT_THAT(UnusedOf("--kv-policy kvpr --batch-groups 2"), IsEmpty());
  EXPECT_THAT(UnusedOf("--kv-policy full --kvpr-split 4"), ElementsAre("--kvpr-split"));
  EXPECT_THAT(UnusedOf("--kv-policy streaming --sink 4 --eta 0.5"), ElementsAre("--eta"));
}

}  // namespace
}  // namespace litecache::cli

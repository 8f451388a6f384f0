
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "expect_error.h"
#include "kv/api/policy_registry.h"
#include "kv/cache.h"
#include "kv/cache_plan.h"
#include "litecache/kv_options.h"
#include "option_table_checks.h"

namespace litecache {
namespace {

TEST(KvBudget, ReadsSharesAndNumbers) {
  EXPECT_DOUBLE_EQ(KvBudget::Parse("10%").share, 0.1);
  EXPECT_DOUBLE_EQ(KvBudget::Parse("0.25").share, 0.25);
  EXPECT_DOUBLE_EQ(KvBudget::Parse("1.0").share, 1);
  EXPECT_DOUBLE_EQ(KvBudget::Parse("2.5%").share, 0.025);
  EXPECT_EQ(KvBudget::Parse("10%").tokens, 0);
  EXPECT_EQ(KvBudget::Parse("2048").tokens, 2048);
  EXPECT_EQ(KvBudget::Parse("4k").tokens, 4096);
  EXPECT_FALSE(KvBudget::Parse("20%").by_need);
  EXPECT_TRUE(KvBudget::Parse("auto").by_need);
  EXPECT_EQ(KvBudget::Parse("auto").RowsFor(1000), 200);  // the most
  for (const char* text : {"10%", "2.5%", "2048", "100%", "auto", "10%@8k", "2.5%@1000"}) {
    const KvBudget budget = KvBudget::Parse(text);
    EXPECT_EQ(budget.ToString(), text);
    EXPECT_EQ(KvBudget::Parse(budget.ToString()).share, budget.share);
    EXPECT_EQ(KvBudget::Parse(budget.ToString()).share_context, budget.share_context);
  }
  for (const char* text :
       {"",    "%",     "0",     "0%",      "101%",    "1.5",       "-3",       "-0.1",
        "0.0", "ten",   "10%%",  "10 %x",   "nan%",    "0.1x",      "1e30",     "10%@",
        "@8k", "10%@0", "10%@x", "2048@8k", "auto@8k", "10%@4k@8k", "10%@2000m"}) {
    EXPECT_THROW(KvBudget::Parse(text), InvalidArgument) << text;
  }
}

TEST(KvBudget, RoundsRowsUpButNotPastWholeOnes) {
  const KvBudget tenth = KvBudget::Parse("10%");
  EXPECT_EQ(tenth.RowsFor(0), 1);
  EXPECT_EQ(tenth.RowsFor(1), 1);
  EXPECT_EQ(tenth.RowsFor(11), 2);
  for (int64_t rows = 1; rows < 20000; rows += 7) {
    EXPECT_EQ(tenth.RowsFor(10 * rows), rows);
    EXPECT_EQ(KvBudget::Parse("100%").RowsFor(rows), rows);
  }
  EXPECT_EQ(KvBudget::Parse("100").RowsFor(5), 100);
  const KvBudget grows = KvBudget::Parse("10%@8k");
  EXPECT_EQ(grows.RowsFor(5000), 640);
  EXPECT_EQ(grows.RowsFor(8192), 820);
  EXPECT_EQ(grows.RowsFor(4 * 8192), 1639);
  EXPECT_EQ(grows.RowsFor(16 * 8192), 3277);
}

struct SomeSettings {
  int value = 3;
};

TEST(PolicySettings, KeepDefaultsUntilTheyAreWrittenAndAreCopied) {
  KvOptions options;
  const KvOptions before = options;
  EXPECT_EQ(before.settings.Of<SomeSettings>().value, 3);
  options.settings.Of<SomeSettings>().value = 5;
  const KvOptions copy = options;
  options.settings.Of<SomeSettings>().value = 6;
  EXPECT_EQ(before.settings.Of<SomeSettings>().value, 3);
  EXPECT_EQ(copy.settings.Of<SomeSettings>().value, 5);
}

TEST(KvOptionTable, HasARowForEveryMember) {
  testing::ExpectSoundTable(KvOptionTable());
  size_t members = 2;  // kvpr and settings, which have separate rows
  size_t of_kvpr = 0;
  for (const auto& option : KvOptionTable()) {
    members += option.name.find('.') == std::string::npos ? 1 : 0;
    of_kvpr += option.name.starts_with("kvpr.") ? 1 : 0;
  }
  EXPECT_EQ(members, testing::CountFields<KvOptions>());
  EXPECT_EQ(of_kvpr, testing::CountFields<KvprOptions>());
}

TEST(KvOptionTable, SaysWhichPoliciesReadAnOption) {
  const auto table = KvOptionTable();
  const auto applies = [&](const char* name, const char* policy) {
    return FindOption(table, name).AppliesTo(policy);
  };
  EXPECT_TRUE(applies("policy", "full"));
  EXPECT_TRUE(applies("device_memory", "streaming"));
  EXPECT_FALSE(applies("host_memory", "full"));
  EXPECT_TRUE(applies("eta", "litecache"));
  EXPECT_FALSE(applies("eta", "kvpr"));
  EXPECT_TRUE(applies("kvpr.split", "kvpr"));
  EXPECT_FALSE(applies("kvpr.split", "litecache"));
  for (const auto& option : table) {
    for (const std::string& policy : option.policies) {
      EXPECT_NO_THROW(kv::FindPolicy(policy)) << option.name;
    }
  }
}

TEST(KvOptionTable, OptionsAreFoundByNameAndByFlag) {
  const auto table = KvOptionTable();
  EXPECT_EQ(FindOption(table, "sink_tokens").name, "sink_tokens");
  EXPECT_EQ(FindOption(table, "sink").name, "sink_tokens");
  EXPECT_EQ(FindOption(table, "kv-budget").name, "budget");
  EXPECT_EQ(FindOption(table, "kvpr_split").name, "kvpr.split");
  EXPECT_ERROR(FindOption(table, "sinks"), InvalidArgument, "sinks", "sink_tokens", "eta");
}

TEST(KvOptions, DefaultsAreValid) { EXPECT_NO_THROW(KvOptions().Validate()); }

TEST(KvOptions, ErrorsNameFieldAndValue) {
  using Change = std::function<void(KvOptions&)>;
  const std::vector<std::pair<std::string, Change>> bad = {
      {"policy", [](auto& o) { o.policy = "lru"; }},
      {"budget", [](auto& o) { o.budget.share = 1.5; }},
      {"budget", [](auto& o) { o.budget.tokens = -1; }},
      {"sink_tokens", [](auto& o) { o.sink_tokens = -1; }},
      {"recent_tokens", [](auto& o) { o.recent_tokens = 0; }},
      {"carry_tokens", [](auto& o) { o.carry_tokens = -1; }},
      {"thresholds", [](auto& o) { o.thresholds = "magic"; }},
      {"eta", [](auto& o) { o.eta = 1.01; }},
      {"eta", [](auto& o) { o.eta = std::numeric_limits<double>::quiet_NaN(); }},
      {"option p:", [](auto& o) { o.p = -1; }},
      {"keep", [](auto& o) { o.keep = 1.1; }},
      {"aggregation", [](auto& o) { o.aggregation = "max"; }},
      {"resident_heads", [](auto& o) { o.resident_heads = "some"; }},
      {"resident_heads", [](auto& o) { o.resident_heads = "-1"; }},
      {"resident_heads", [](auto& o) { o.resident_heads = ""; }},
      {"epsilon", [](auto& o) { o.epsilon = 9; }},
      {"dense_layers", [](auto& o) { o.dense_layers = -1; }},
      {"resident_whole", [](auto& o) { o.resident_whole = -1; }},
      {"prefetch", [](auto& o) { o.prefetch = "maybe"; }},
      {"prefetch", [](auto& o) { o.prefetch = "5"; }},
      {"prefetch", [](auto& o) { o.prefetch = "-,1"; }},
      {"prefetch", [](auto& o) { o.prefetch = "-,-,1,0"; }},
      {"prefetch", [](auto& o) { o.prefetch = "-,0,,1"; }},
      {"prefetch", [](auto& o) { o.prefetch = "-,-,-,-,-,0"; }},
      {"retriever", [](auto& o) { o.retriever = "faiss"; }},
      {"hata_bits", [](auto& o) { o.hata_bits = 64; }},
      {"loki_rank", [](auto& o) { o.loki_rank = -1; }},
      {"slots", [](auto& o) { o.slots = 0.5; }},
      {"delta_update",
       [](auto& o) {
         o.slots = 2;
         o.delta_update = false;
       }},
      {"host_rows", [](auto& o) { o.host_rows = "int3"; }},
      {"transfer", [](auto& o) { o.transfer = "dma"; }},
      {"transfer_threads", [](auto& o) { o.transfer_threads = -1; }},
      {"batch_groups", [](auto& o) { o.batch_groups = 0; }},
      {"hata_norms",
       [](auto& o) {
         o.hata_group = "softmax";
         o.hata_norms = false;
       }},
      {"kvpr.split", [](auto& o) { o.kvpr.split = -2; }},
  };
  for (const auto& [field, change] : bad) {
    KvOptions options;
    change(options);
    try {
      options.Validate();
      ADD_FAILURE() << field << " was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    }
  }
}

// Rows are transferred to a GPU; on the CPU no engine has anything to do.
TEST(KvOptions, TransferEnginesNeedAGpu) {
  const kv::Layout layout{.layers = 2, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
  for (const char* engine : {"gpu-pull", "cpu-push", "copy"}) {
    KvOptions options;
    options.policy = "litecache";
    options.transfer = engine;
    EXPECT_ERROR(kv::MakeCachePlan(layout, options, nullptr, DeviceType::kCpu), Unsupported,
                 "transfer", engine, "GPU");
  }
}

}  // namespace
}  // namespace litecache

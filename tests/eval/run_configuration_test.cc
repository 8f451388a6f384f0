#include <gmock/gmock.h>

#include "eval/run/configuration.h"
#include "expect_error.h"

namespace litecache::eval {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Names(const std::vector<Configuration>& configurations) {
  std::vector<std::string> names;
  for (const auto& configuration : configurations) names.push_back(configuration.name);
  return names;
}

TEST(Configurations, FullOnceAndEveryRetrieverWithEveryBudget) {
  ConfigurationRequest request;
  request.retrievers = {"hata", "quest"};
  request.budgets = {"2%", "2k"};
  request.base.kv.sink_tokens = 7;
  const auto all = MakeConfigurations(request);
  EXPECT_THAT(Names(all), ElementsAre("full", "hata-2%", "hata-2048", "quest-2%", "quest-2048"));
  EXPECT_EQ(all[0].engine.kv.policy, "full");
  EXPECT_EQ(all[2].engine.kv.policy, "litecache");
  EXPECT_EQ(all[2].engine.kv.retriever, "hata");
  EXPECT_EQ(all[2].engine.kv.budget.tokens, 2048);
  EXPECT_DOUBLE_EQ(all[3].engine.kv.budget.share, 0.02);
  for (const auto& configuration : all) EXPECT_EQ(configuration.engine.kv.sink_tokens, 7);
}

TEST(Configurations, NamedOnesOverrideTheBase) {
  ConfigurationRequest request;
  request.policies = {"full"};
  request.base.kv.eta = 0.3;
  request.base.kv.p = 5;
  request.named = {"fixed:thresholds=fixed,eta=-1,sink=2,delta-update=off", "base"};
  const auto all = MakeConfigurations(request);
  ASSERT_THAT(Names(all), ElementsAre("full", "fixed", "base"));
  EXPECT_EQ(all[1].engine.kv.policy, "litecache");
  EXPECT_EQ(all[1].engine.kv.thresholds, "fixed");
  EXPECT_EQ(all[1].engine.kv.eta, -1);
  EXPECT_EQ(all[1].engine.kv.p, 5);
  EXPECT_EQ(all[1].engine.kv.sink_tokens, 2);
  EXPECT_FALSE(all[1].engine.kv.delta_update);
  EXPECT_EQ(all[2].engine.kv.eta, 0.3);
  EXPECT_EQ(all[2].engine.kv.policy, "litecache");
}

TEST(Configurations, Errors) {
  const auto with = [](const std::string& named) {
    ConfigurationRequest request;
    request.named = {named};
    return [request] { MakeConfigurations(request); };
  };
  testing::ExpectError<InvalidArgument>(with("a:nonsense=1"), {"a:nonsense=1", "nonsense", "eta"},
                                        __FILE__, __LINE__);
  testing::ExpectError<InvalidArgument>(with("a:eta"), {"eta", "key=value"}, __FILE__, __LINE__);
  testing::ExpectError<InvalidArgument>(with("a:eta=x"), {"eta", "'x'"}, __FILE__, __LINE__);
  testing::ExpectError<InvalidArgument>(with("a:hata_bits=1.5"), {"hata_bits", "1.5"}, __FILE__,
                                        __LINE__);
  testing::ExpectError<InvalidArgument>(with("a:delta_update=maybe"), {"delta_update", "maybe"},
                                        __FILE__, __LINE__);
  testing::ExpectError<InvalidArgument>(with(":eta=1"), {"NAME"}, __FILE__, __LINE__);
  testing::ExpectError<InvalidArgument>(with("full:eta=1"), {"two configurations 'full'"}, __FILE__,
                                        __LINE__);
  // Options that KvOptions rejects are rejected with the configuration's name.
  testing::ExpectError<InvalidArgument>(with("odd:retriever=oracle"), {"odd", "oracle"}, __FILE__,
                                        __LINE__);
  ConfigurationRequest none;
  none.policies.clear();
  testing::ExpectError<InvalidArgument>([&] { MakeConfigurations(none); }, {"nothing to run"},
                                        __FILE__, __LINE__);
  ConfigurationRequest budget;
  budget.budgets = {"150%"};
  testing::ExpectError<InvalidArgument>([&] { MakeConfigurations(budget); }, {"150%"}, __FILE__,
                                        __LINE__);
}

TEST(Configurations, EveryOptionByNameAndByFlag) {
  ConfigurationRequest request;
  request.policies = {};
  request.named = {"groups:policy=kvpr,batch_groups=2", "flags:batch-groups=3,kv-budget=4k",
                   "engine:exact=on,quantize=q8_0"};
  const auto all = MakeConfigurations(request);
  EXPECT_EQ(all[0].engine.kv.batch_groups, 2);
  EXPECT_EQ(all[1].engine.kv.batch_groups, 3);
  EXPECT_EQ(all[1].engine.kv.budget.tokens, 4096);
  EXPECT_TRUE(all[2].engine.exact);
  EXPECT_EQ(all[2].engine.quantize, "q8_0");
}

TEST(OptionsJson, HasEveryValueAsTextThatSetsIt) {
  EngineOptions options;
  KvOptions& kv = options.kv;
  kv.budget = KvBudget::Parse("3k");
  kv.eta = 0.123456789012345;
  kv.slots = 1.75;
  kv.delta_update = false;
  kv.host_rows = "int8";
  kv.host_memory = (uint64_t{5} << 30) + 3;
  kv.recent_tokens = 129;
  kv.resident_heads = "formula";
  kv.batch_groups = 2;
  options.quantize = "q4_k";
  options.exact = true;
  const auto json = OptionsJson(options);
  EXPECT_EQ(json.size(), KvOptionTable().size() + 6);
  EXPECT_EQ(json["exact"], "on");
  EXPECT_EQ(json["batch_groups"], "2");
  EngineOptions copy;
  for (const auto& [name, value] : json.items()) {
    FindOption(EngineOptionTable(), name).set(copy, value.get<std::string>(), name);
  }
  EXPECT_EQ(OptionsJson(copy), json);
  EXPECT_NE(OptionsJson(EngineOptions()), json);
  EXPECT_EQ(copy.quantize, "q4_k");
  EXPECT_TRUE(copy.exact);
  EXPECT_EQ(copy.kv.eta, kv.eta);
  EXPECT_EQ(copy.kv.host_memory, kv.host_memory);
  EXPECT_EQ(copy.kv.budget.tokens, 3072);
}

}  // namespace
}  // namespace litecache::eval

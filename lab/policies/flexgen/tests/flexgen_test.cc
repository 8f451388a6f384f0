// Policy flexgen against attention over every row.

#include <gtest/gtest.h>

#include <random>

#include "expect_error.h"
#include "kv/layout.h"
#include "kv/offload/shape.h"
#include "kv/policy_oracle.h"
#include "lab/namespaces.h"
#include "lab/policies/flexgen/options.h"
#include "test_seed.h"

namespace litecache::lab {
namespace {

bool All(int64_t, int64_t) { return true; }

constexpr TierBytes kPlenty{.device = uint64_t{2} << 30, .host = uint64_t{2} << 30};

KvOptions Options(double share, const std::string& rows) {
  KvOptions options;
  options.policy = "flexgen";
  options.settings.Of<FlexGenOptions>().device_share = share;
  options.host_rows = rows;
  return options;
}

class FlexGenLives : public DeviceTest {};

TEST_P(FlexGenLives, AttendEveryRow) {
  std::mt19937_64 random = testing::TestRandom();
  const std::map<std::string, std::optional<ops::RowEncoding>> stored = {
      {"auto", std::nullopt},
      {"fp8", ops::RowEncoding::kFp8},
      {"int8", ops::RowEncoding::kInt8},
      {"int4", ops::RowEncoding::kInt4}};
  for (int round = 0; round < 24 && !::testing::Test::HasFailure(); ++round) {
    const int64_t kv_heads = 1 + static_cast<int64_t>(random() % 4);
    const Layout layout{.layers = 1 + static_cast<int64_t>(random() % 3),
                        .q_heads = kv_heads * (1 + static_cast<int64_t>(random() % 3)),
                        .kv_heads = kv_heads,
                        .head_dim = Pick<int64_t>(random, {16, 24, 64, 80, 128}),
                        .dtype = Pick(random, {DType::kF32, DType::kBF16})};
    const double share = Pick(random, {0.0, 0.0, 0.3, 0.5, 1.0});
    // Rows that stay on the device are not rounded, but the reference rounds all rows or none.
    const auto rows = share > 0 ? std::string("auto")
                                : Pick<std::string>(random, {"auto", "fp8", "int8", "int4"});
    KvOptions options = Options(share, rows);
    options.batch_groups = Pick<int64_t>(random, {1, 1, 2, 3, 8});
    SCOPED_TRACE(::testing::Message()
                 << "groups " << options.batch_groups << " share " << share << " rows " << rows
                 << " KV heads " << kv_heads << " head_dim " << layout.head_dim << " "
                 << Name(layout.dtype));
    const auto plan = MakeCachePlan(layout, options, nullptr, device_type());
    PolicyOracle oracle(*plan, All, random(), kPlenty, stored.at(rows), device());
    // Pages on a GPU are longer.
    oracle.RunLife(30, Pick<int64_t>(random, {20, 90, device() == "cuda" ? 500 : 200}));
  }
}

// On a GPU, steps of the same sequences begin before the previous ones have ended: with fewer
// layers than buffers, with as many, with more, in one group and in several. Every layer is waited
// for here; model/exact_policies_test covers rows that are fetched before they are stored.
TEST_P(FlexGenLives, StepsLikeTheLastOne) {
  std::mt19937_64 random = testing::TestRandom();
  for (int64_t layers = 1; layers <= 5; ++layers) {
    for (const int64_t groups : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << layers << " layers, groups " << groups);
      const Layout layout{.layers = layers, .q_heads = 4, .kv_heads = 2, .head_dim = 32};
      KvOptions options = Options(0, "auto");
      options.batch_groups = groups;
      const auto plan = MakeCachePlan(layout, options, nullptr, device_type());
      PolicyOracle oracle(*plan, All, random(), kPlenty, std::nullopt, device());
      std::vector<Part> parts;
      for (const int64_t tokens : {70, 33, 15}) {
        parts.push_back({oracle.Create(), 1, true});
        oracle.Step({{parts.back().id, tokens, false}});
      }
      // Beyond the end of a page of 16 tokens.
      for (int step = 0; step < 20; ++step) oracle.Step(parts);
    }
  }
}

// Pages on a GPU hold all heads of a layer: sizes that are not powers of two, tables that share one
// size, and the memory charged for a sequence.
TEST(FlexGenTest, PagesOnAGpu) {
  const Layout layout{
      .layers = 3, .q_heads = 40, .kv_heads = 40, .head_dim = 128, .dtype = DType::kBF16};
  for (const double share : {0.0, 0.25, 0.975, 1.0}) {
    for (const std::string rows : {"auto", "int8", "fp8"}) {
      const offload::Shape shape(layout, Options(share, rows), share, false, DeviceType::kCuda);
      SCOPED_TRACE(::testing::Message() << share << " " << rows);
      EXPECT_EQ(shape.page_bytes % 256, 0u);
      EXPECT_EQ(shape.page_bytes, shape.store_page_bytes);
      const auto holds = [&](int64_t tokens, int64_t heads, const ops::RowFormat& format) {
        if (heads == 0) return;
        EXPECT_GE(tokens, 16);
        EXPECT_LE(static_cast<uint64_t>(tokens * heads) * format.row_bytes(), shape.page_bytes);
      };
      holds(shape.store_page_tokens, shape.host_heads(), shape.store_format);
      holds(shape.staging_page_tokens, shape.host_heads(), shape.format);
      holds(shape.resident_page_tokens, shape.device_heads, shape.format);
      if (!shape.expands()) {
        EXPECT_EQ(shape.staging_page_tokens, shape.store_page_tokens);
      }
      const TierBytes bytes = shape.BytesFor(1000, 0);
      const uint64_t host =
          1000u * 3 * static_cast<uint64_t>(shape.host_heads()) * shape.store_format.row_bytes();
      EXPECT_GE(bytes.host, host);
      EXPECT_LE(bytes.host, host + 3 * shape.page_bytes + host / 10);
    }
  }
}

// The memory charged for a sequence on a GPU, to the page: three staging buffers for a layer's
// rows, in their transferred form where they are expanded; of kvpr's inputs, layer 0's stay on the
// device.
TEST(FlexGenTest, MemoryOnAGpu) {
  const Layout layout{.layers = 5,
                      .q_heads = 8,
                      .kv_heads = 8,
                      .head_dim = 64,
                      .dtype = DType::kBF16,
                      .hidden = 1024};
  const auto blocks = [](int64_t tokens, int64_t in_page) {
    return (tokens + in_page - 1) / in_page;
  };
  for (const double share : {0.0, 0.25}) {
    for (const std::string rows : {"auto", "fp8"}) {
      for (const bool inputs : {false, true}) {
        for (const int64_t n : {1, 255, 256, 257, 5000}) {
          SCOPED_TRACE(::testing::Message() << share << " " << rows << " " << inputs << " " << n);
          const offload::Shape shape(layout, Options(share, rows), share, inputs,
                                     DeviceType::kCuda);
          const int64_t recomputed = inputs ? n / 2 : 0;
          int64_t staged = blocks(n, shape.staging_page_tokens);
          if (rows == "fp8") staged += blocks(n, shape.store_page_tokens);
          if (recomputed > 0) {
            staged += blocks(recomputed, static_cast<int64_t>(shape.page_bytes) / 2048);
          }
          int64_t device = 3 * staged, host = 5 * blocks(n, shape.store_page_tokens);
          if (share > 0) device += 5 * blocks(n, shape.resident_page_tokens);
          if (inputs) {
            EXPECT_EQ(shape.InputList(0), -1);
            EXPECT_EQ(shape.InputList(4), 3);
            device += blocks(n, shape.input_page_tokens);
            host += 4 * blocks(n, shape.input_page_tokens);
          }
          const TierBytes bytes = shape.BytesFor(n, recomputed);
          EXPECT_EQ(bytes.device, static_cast<uint64_t>(device) * shape.page_bytes);
          EXPECT_EQ(bytes.host, static_cast<uint64_t>(host) * shape.page_bytes);
        }
      }
    }
  }
}

// Transferred data, to the byte: per layer and step all earlier rows of the heads on the host.
TEST(FlexGenTest, TrafficAndMemory) {
  const Layout layout{
      .layers = 3, .q_heads = 4, .kv_heads = 4, .head_dim = 64, .dtype = DType::kBF16};
  const auto plan = MakeCachePlan(layout, Options(0.25, "auto"), nullptr);
  PolicyOracle oracle(*plan, All, testing::TestSeed(), plan->BytesFor(400));
  const SequenceId id = oracle.Create();
  oracle.Step({{id, 300, false}});
  Stats stats = oracle.cache().GetStats();
  EXPECT_EQ(stats.stream.rows, 0u);
  EXPECT_EQ(stats.prefill.rows, 300u * 3 * 3);
  EXPECT_EQ(stats.prefill.bytes, stats.prefill.rows * 256);
  oracle.Step({{id, 1, true}});
  oracle.Step({{id, 1, true}});
  stats = oracle.cache().GetStats();
  EXPECT_EQ(stats.stream.rows, (300u + 301) * 3 * 3);
  EXPECT_EQ(stats.stream.bytes, stats.stream.rows * 256);
  EXPECT_EQ(stats.spill.rows, 2u * 3 * 3);
  // Two blocks of 256 tokens: one head's resident pages per layer, and two buffers for three heads.
  const uint64_t page = 64 * 1024;
  EXPECT_EQ(plan->BytesFor(302).device, 2 * (3 + 2 * 3) * page);
  EXPECT_EQ(plan->BytesFor(302).host, 2 * (3 * 3) * page);
  EXPECT_EQ(stats.peak, plan->BytesFor(302));
  EXPECT_EQ(stats.used.host, plan->BytesFor(302).host);
  EXPECT_EQ(stats.used.device, 2 * 3 * page) << "staging is given back between steps";
}

TEST(FlexGenTest, BudgetsAreHard) {
  const Layout layout{
      .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kBF16};
  const auto plan = MakeCachePlan(layout, Options(0, "auto"), nullptr);
  const TierBytes exact = plan->BytesFor(512);
  for (const bool host : {false, true}) {
    TierBytes budget = exact;
    (host ? budget.host : budget.device) -= 1;
    PolicyOracle small(*plan, All, testing::TestSeed(), budget);
    const SequenceId id = small.Create();
    small.Step({{id, 256, false}});
    const Step step{{{id, 0, 200, 256, false}}, 200, 0};
    EXPECT_ERROR(small.cache().BeginStep(step), CapacityError, host ? "host store" : "device tier");
    EXPECT_EQ(small.cache().Length(id), 256);
  }
  PolicyOracle oracle(*plan, All, testing::TestSeed(), exact);
  const SequenceId id = oracle.Create();
  oracle.Step({{id, 511, false}});
  oracle.Step({{id, 1, true}});
}

// Steps that are begun and abandoned while sequences are released: the transfers must stop.
TEST_P(FlexGenLives, AbandonedStepsLeaveNothingBehind) {
  std::mt19937_64 random = testing::TestRandom();
  const Layout layout{
      .layers = 4, .q_heads = 2, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF32};
  KvOptions options = Options(0, "int4");
  options.batch_groups = 1 + static_cast<int64_t>(random() % 3);
  const auto plan = MakeCachePlan(layout, options, nullptr, device_type());
  PolicyOracle oracle(*plan, All, random(), kPlenty, ops::RowEncoding::kInt4, device());
  for (int i = 0; i < 30; ++i) {
    const SequenceId id = oracle.Create();
    oracle.Step({{id, 1 + static_cast<int64_t>(random() % 300), false}});
    const Step step{{{id, 0, 1, oracle.cache().Length(id), true}}, 1, 1};
    oracle.cache().BeginStep(step);
    if (random() % 2 == 0) oracle.cache().BeginStep(step);
    if (random() % 2 == 0) oracle.Step({{oracle.Fork(id), 1, true}});
    oracle.Release(id);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, FlexGenLives, ::testing::Values("cpu", "cuda"), DeviceName());

TEST(FlexGenTest, RefusesWhatItCannotDo) {
  const Layout layout{.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 16};
  EXPECT_ERROR(MakeCachePlan(layout, Options(1.5, "auto"), nullptr), InvalidArgument,
               "flexgen.device_share", "1.5");
  EXPECT_ERROR(MakeCachePlan({.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 18},
                             Options(0, "int4"), nullptr, DeviceType::kCuda),
               Unsupported, "int4", "18");
  EXPECT_NE(MakeCachePlan({.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 20},
                          Options(0, "int4"), nullptr, DeviceType::kCuda),
            nullptr);
}

}  // namespace
}  // namespace litecache::lab

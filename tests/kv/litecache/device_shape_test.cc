// The contents of policy litecache's tiers on a GPU, and the heads that support them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string_view>

#include "expect_error.h"
#include "kv/cache_plan.h"
#include "kv/heads/head_plan.h"
#include "kv/litecache/shape.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

// 8-bit rows of a GPU's store contain only codes; their scales are counted on the device.
TEST(DeviceShape, ScalesOfAGpusStore) {
  const Layout layout{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64};
  HeadPlan plan;
  plan.layers = 2;
  plan.kv_heads = 2;
  plan.heads.resize(4);
  plan.heads[1].resident = true;
  constexpr int64_t kTokens = 20000;
  for (const char* rows : {"auto", "fp8", "int8", "int4"}) {
    SCOPED_TRACE(rows);
    KvOptions options;
    options.host_rows = rows;
    const Shape on_cpu(layout, options, plan, 0),
        on_gpu(layout, options, plan, 0, DeviceType::kCuda);
    EXPECT_FALSE(on_cpu.store_format.scales_apart);
    EXPECT_EQ(on_cpu.ScalesTable().lists, 0);
    const bool apart = on_gpu.store_format.has_scales();
    EXPECT_EQ(apart, on_gpu.store_format.encoding == ops::RowEncoding::kFp8 ||
                         on_gpu.store_format.encoding == ops::RowEncoding::kInt8);
    EXPECT_EQ(on_gpu.store_format.row_bytes(), on_cpu.store_format.row_bytes() - (apart ? 16 : 0));
    uint64_t parts = 0, scales = 0;
    for (const NamedBytes& part : on_gpu.DeviceParts(kTokens)) {
      parts += part.bytes;
      if (part.name.starts_with("scales")) scales = part.bytes;
    }
    EXPECT_EQ(parts, on_gpu.BytesFor(kTokens).device);
    if (!apart) {
      EXPECT_EQ(scales, 0u);
      continue;
    }
    // For three lists, each in whole pages.
    EXPECT_GE(scales, 3 * kTokens * sizeof(ops::RowScales));
    EXPECT_LT(scales, 3 * (kTokens * sizeof(ops::RowScales) + on_gpu.pages.page_bytes));
  }
}

// On a GPU, cached slots can keep the store's codes: their pages come after those of sink and ring,
// and hold all slots.
TEST(DeviceShape, SlotsOfCodes) {
  std::mt19937_64 random = testing::TestRandom(32);
  HeadPlan plan;
  plan.layers = 2;
  plan.kv_heads = 2;
  plan.heads.resize(4);
  const auto shape_of = [&](const Layout& layout, const KvOptions& options) {
    return Shape(layout, options, plan, 0, DeviceType::kCuda);
  };
  KvOptions fp8;
  fp8.host_rows = "fp8";
  fp8.budget = KvBudget();  // many pages at a million tokens
  const Layout layout{
      .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 128, .dtype = DType::kBF16};
  for (int i = 0; i < 300; ++i) {
    KvOptions options = fp8;
    options.host_rows = i % 2 == 0 ? "fp8" : "int8";
    options.budget.share = std::uniform_real_distribution<double>(0.01, 1)(random);
    options.recent_tokens = static_cast<int64_t>(random() % 400);
    options.carry_tokens = static_cast<int64_t>(random() % 400);
    options.slots = 1 + static_cast<double>(random() % 3);
    const Shape shape = shape_of(layout, options);
    const ops::cuda::CodeSlots& codes = shape.codes;
    ASSERT_EQ(codes.encoding, shape.store_format.encoding);
    ASSERT_GT(codes.page_slots, 0);
    ASSERT_EQ(codes.page_slots % 4, 0);
    // A row, its position, its update number and its scales.
    ASSERT_LE(codes.page_slots * (256 + 4 + 4 + 8), static_cast<int64_t>(shape.pages.page_bytes));
    ASSERT_GT((codes.page_slots + 4) * (256 + 4 + 4 + 8),
              static_cast<int64_t>(shape.pages.page_bytes));
    ASSERT_EQ(codes.begin, shape.CacheBegin());
    ASSERT_GE(codes.first_page * shape.page_slots, shape.CacheBegin());
    ASSERT_LT((codes.first_page - 1) * shape.page_slots, shape.CacheBegin());
    const auto n = static_cast<int64_t>(random() % 2000000);
    const int64_t pages = shape.SlotPages(n) - codes.first_page;
    ASSERT_GE(pages * codes.page_slots, shape.CacheSlots(n)) << n;
    ASSERT_LT((pages - 1) * codes.page_slots, shape.CacheSlots(n)) << n;
    uint64_t parts = 0;
    for (const NamedBytes& part : shape.DeviceParts(n)) parts += part.bytes;
    ASSERT_EQ(parts, shape.BytesFor(n).device);
  }
  // Half the memory of bf16 rows, of which a page holds 125 instead of 240.
  const Shape kept = shape_of(layout, fp8);
  setenv("LITECACHE_SLOT_CODES", "0", /*overwrite=*/1);
  const Shape expanded = shape_of(layout, fp8);
  unsetenv("LITECACHE_SLOT_CODES");
  EXPECT_EQ(expanded.codes.page_slots, 0);
  // The plan's description states which.
  const auto says = [](const Shape& shape, std::string_view name) {
    return std::ranges::any_of(shape.DeviceParts(5000),
                               [&](const NamedBytes& part) { return part.name == name; });
  };
  EXPECT_TRUE(says(kept, "cached rows, in 8 bits"));
  EXPECT_TRUE(says(expanded, "cached rows"));
  // At short contexts, separate pages from those of sink and ring cost at most one page more.
  for (int64_t n = 1; n < 20000; n += 7) {
    ASSERT_LE(kept.SlotPages(n), expanded.SlotPages(n) + 1) << n;
    if (n >= 3000) {
      ASSERT_LE(kept.SlotPages(n), expanded.SlotPages(n)) << n;
    }
  }
  constexpr int64_t kMillion = 1000000;
  EXPECT_NEAR(static_cast<double>(kept.SlotPages(kMillion)) /
                  static_cast<double>(expanded.SlotPages(kMillion)),
              125.0 / 240, 0.01);

  // Cases in which rows are not kept as codes.
  const auto differs = [&](const auto& change) {
    Layout other = layout;
    KvOptions options = fp8;
    change(&other, &options);
    return shape_of(other, options).codes.page_slots;
  };
  EXPECT_GT(differs([](Layout*, KvOptions*) {}), 0);
  EXPECT_GT(differs([](Layout*, KvOptions* options) { options->transfer = "gpu-pull"; }), 0);
  EXPECT_EQ(differs([](Layout*, KvOptions* options) { options->host_rows = "auto"; }), 0);
  EXPECT_EQ(differs([](Layout*, KvOptions* options) { options->host_rows = "int4"; }), 0);
  EXPECT_EQ(differs([](Layout*, KvOptions* options) { options->transfer = "cpu-push"; }), 0);
  EXPECT_EQ(differs([](Layout*, KvOptions* options) { options->transfer = "copy"; }), 0);
  EXPECT_EQ(differs([](Layout* other, KvOptions*) { other->dtype = DType::kF32; }), 0);
  EXPECT_EQ(differs([](Layout* other, KvOptions*) { other->head_dim = 72; }), 0);
  // Heads of all sizes that a GPU attends.
  EXPECT_GT(differs([](Layout* other, KvOptions*) { other->head_dim = 16; }), 0);
  EXPECT_GT(differs([](Layout* other, KvOptions*) { other->head_dim = 256; }), 0);
  EXPECT_GT(differs([](Layout* other, KvOptions*) { other->head_dim = 512; }), 0);
  EXPECT_EQ(Shape(layout, fp8, plan, 0, DeviceType::kCpu).codes.page_slots, 0);
}

TEST(DeviceShape, RowsOf4BitsWantHeadsOfFourValues) {
  KvOptions options;
  options.policy = "litecache";
  options.host_rows = "int4";
  const auto plan = [&](int64_t head_dim, DeviceType device) {
    const Layout layout{.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = head_dim};
    return PlanLiteCache(layout, options, nullptr, device);
  };
  EXPECT_ERROR(plan(18, DeviceType::kCuda), Unsupported, "int4", "18", "fp8");
  EXPECT_NE(plan(20, DeviceType::kCuda), nullptr);
  EXPECT_NE(plan(18, DeviceType::kCpu), nullptr);
  options.host_rows = "auto";
  EXPECT_NE(plan(18, DeviceType::kCuda), nullptr);
}

}  // namespace
}  // namespace litecache::kv

// One kernel that fetches the rows of all layers of a step: it must fetch the same rows as separate
// pulls for each layer, and they must have arrived when they are waited for.
#include "kv/transfer/step_pull_cuda.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "device/cuda/check.h"
#include "kv/litecache/cache_cuda.h"
#include "kv/litecache/harness.h"
#include "kv/slots_testing_cuda.h"
#include "ops/transfer/pull_rows_cuda.h"

namespace litecache::kv {
namespace {

using ops::RowEncoding;
using ops::cuda::LiteCacheCase;
using ops::cuda::LiteCacheLayer;
using ops::cuda::Random;
using ops::cuda::Uniform;

constexpr int64_t kLayers = 7;

class StepPullTest : public SlotsTest {
 protected:
  void SetUp() override {
    LiteCacheTest::SetUp();
    if (IsSkipped()) return;
    std::string reason;
    split_ = SmSplit::Get(gpu_->index(), 8, &reason);
    if (split_ == nullptr) GTEST_SKIP() << reason;
    main_ = split_->StreamOfRest(/*first=*/false);
    decisions_ = std::make_unique<CudaBranch>(split_->StreamOfRest(/*first=*/true), 0);
    pulls_ = std::make_unique<CudaBranch>(split_->StreamOfFew(/*first=*/true), 0);
    number_ = Upload(std::vector<uint32_t>{0});
  }

  std::unique_ptr<StepPull> Create(uint64_t deadline_ns) {
    std::string reason;
    auto pull = StepPull::Create(*gpu_, *pinned_, *split_, kLayers, deadline_ns, &reason);
    if (pull == nullptr) ADD_FAILURE() << reason;
    return pull;
  }

  // A case of sequences with alternating formats; layers have separate lists.
  void BuildLayers(Random& random, int round) {
    LiteCacheCase c;
    c.kv_heads = Uniform(random, 1, 8);
    c.group = 1;
    const int32_t dims[] = {128, 64, 80, 24, 512, 320, 128};
    c.head_dim = dims[round % 7];
    const RowEncoding stores[] = {RowEncoding::kBF16, RowEncoding::kFp8, RowEncoding::kInt8,
                                  RowEncoding::kInt4, RowEncoding::kBF16};
    c.store = stores[round % 5];
    if (round % 3 == 2) c.encoding = RowEncoding::kF32;
    if (c.store == RowEncoding::kBF16) c.store = c.encoding;
    c.share = 0.3;
    c.codes = Uniform(random, 0, 1) == 1;
    for (int i = round % 2 == 0 ? 1 : Uniform(random, 2, 6); i > 0; --i) {
      c.past.push_back(Uniform(random, 400, 2500));
    }
    Build(random, c);
    const size_t pairs = PairOf(sequences() + 1, 0);
    const size_t room = pairs * static_cast<size_t>(shape_.max_rows);
    layers_.assign(kLayers, layer_);
    for (LiteCacheLayer& layer : layers_) {
      layer.refresh = Upload(std::vector<int32_t>(pairs, 0));
      layer.moved_count = Upload(std::vector<int32_t>(pairs, 0));
      layer.moved_positions = Upload(std::vector<int32_t>(room, -1));
      layer.moved_slots = Upload(std::vector<int32_t>(room, -1));
    }
  }

  // No slot belongs to two layers: some of them write while others do.
  void DrawLists(Random& random) {
    drawn_.clear();
    const size_t pairs = PairOf(sequences() + 1, 0);
    for (size_t i = 0; i < layers_.size(); ++i) {
      MoveLists lists(pairs, static_cast<size_t>(shape_.max_rows));
      const int misses = Uniform(random, 0, 4);  // of four heads; of none: an empty list
      for (int32_t s = 0; s < sequences(); ++s) {
        const int32_t n = views_[static_cast<size_t>(s)].past;
        const int32_t share = shape_.windows.CacheSlots(n + 1) / static_cast<int32_t>(kLayers);
        for (int32_t h = 0; h < shape_.kv_heads; ++h) {
          const size_t pair = PairOf(s, h);
          lists.refresh[pair] = Uniform(random, 0, 3) < misses;
          const int32_t most = std::min(share, shape_.max_rows);
          std::vector<int32_t> chosen(static_cast<size_t>(n));
          std::iota(chosen.begin(), chosen.end(), 0);
          std::shuffle(chosen.begin(), chosen.end(), random);
          chosen.resize(
              static_cast<size_t>(Uniform(random, 0, 1) == 0 ? most : Uniform(random, 0, most)));
          std::vector<int32_t> into(static_cast<size_t>(share));
          std::iota(into.begin(), into.end(), shape_.cache_begin + static_cast<int32_t>(i) * share);
          std::shuffle(into.begin(), into.end(), random);
          lists.Set(pair, chosen, into);
        }
      }
      lists.CopyTo(*gpu_, layers_[i]);
      drawn_.push_back(std::move(lists));
    }
  }

  // The bytes of a layer's rows in sequence, from the slots `all`.
  std::vector<std::byte> RowsOf(size_t layer, const SlotBytes& all) {
    for (int32_t s = 0; s < sequences(); ++s) {
      PagesOf(s, ops::cuda::kSlots).mirror = all[static_cast<size_t>(s)];
    }
    std::vector<std::byte> rows;
    const MoveLists& lists = drawn_[layer];
    for (int32_t s = 0; s < sequences(); ++s) {
      for (int32_t h = 0; h < shape_.kv_heads; ++h) {
        const size_t pair = PairOf(s, h);
        if (lists.refresh[pair] == 0) continue;
        for (int32_t i = 0; i < lists.counts[pair]; ++i) {
          const int32_t slot =
              lists.slots[pair * static_cast<size_t>(shape_.max_rows) + static_cast<size_t>(i)];
          const CachedSlot cached = Cached(s, ListOf(h), slot);
          rows.insert(rows.end(), cached.row, cached.row + cached.row_bytes);
          if (cached.scales == nullptr) continue;
          const auto* scales = reinterpret_cast<const std::byte*>(cached.scales);
          rows.insert(rows.end(), scales, scales + sizeof(ops::RowScales));
        }
      }
    }
    return rows;
  }

  const SmSplit* split_ = nullptr;
  std::unique_ptr<CudaStream> main_;
  std::unique_ptr<CudaBranch> decisions_, pulls_;
  uint32_t* number_ = nullptr;
  std::vector<LiteCacheLayer> layers_;
  std::vector<MoveLists> drawn_;
};

TEST_F(StepPullTest, BringsWhatPullsOfEachLayerBring) {
  Random random = testing::TestRandom(54);
  const auto pull = Create(uint64_t{5} * 1000 * 1000 * 1000);
  ASSERT_NE(pull, nullptr);
  uint32_t number = 0;
  for (int round = 0; round < testing::Rounds(10); ++round) {
    BuildLayers(random, round);
    // One layer in the middle is not pulled, and one is not waited for.
    std::vector<uint8_t> pulled(kLayers, 1);
    const int64_t kept = Uniform(random, 0, kLayers - 1), passed = Uniform(random, 0, kLayers - 1);
    pulled[static_cast<size_t>(kept)] = 0;
    pull->SetLayers(layers_, pulled);
    std::vector<std::vector<Buffer>> snapshots(kLayers);
    for (auto& of_layer : snapshots) {
      for (int32_t s = 0; s < sequences(); ++s) {
        of_layer.push_back(gpu_->Allocate(PagesOf(s, ops::cuda::kSlots).mirror.size()));
      }
    }
    const auto comes = [&](int64_t layer) { return layer != kept && layer != passed; };
    const int64_t ahead = Uniform(random, 1, 3);
    const auto issue = [&] {
      pull->BeginStep(*main_, /*wanted=*/true, number_);
      if (!pull->on()) return;  // the first time: issued, not recorded
      const auto list = [&](int64_t layer) {
        if (layer >= kLayers || layer == kept) return;
        decisions_->Fork(*main_);
        if (layer == passed) {
          pull->Pass(decisions_->stream(), layer);
        } else {
          pull->Listed(*main_, *pulls_, decisions_->stream(), step_, shape_, layer);
        }
      };
      for (int64_t layer = 0; layer < ahead; ++layer) list(layer);
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        list(layer + ahead);
        if (!comes(layer)) continue;
        pull->Await(*main_, layer);
        for (int32_t s = 0; s < sequences(); ++s) {
          const Buffer& to = snapshots[static_cast<size_t>(layer)][static_cast<size_t>(s)];
          LC_CUDA(cudaMemcpyAsync(to.data(), PagesOf(s, ops::cuda::kSlots).buffer.data(), to.size(),
                                  cudaMemcpyDeviceToDevice, main_->handle()));
        }
      }
      decisions_->JoinAll(*main_);
      pulls_->JoinAll(*main_);
    };
    main_->DropGraphs();
    main_->Run(1, issue);
    for (int step = 0; step < testing::Rounds(6); ++step) {
      const std::string where = "round " + std::to_string(round) + ", step " +
                                std::to_string(step) + ", store " + std::string(Name(case_.store)) +
                                ", " + case_.Name();
      DrawLists(random);
      const auto before = Poison(random);
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        if (!comes(layer)) continue;
        PullRows(*stream_, step_, shape_, layers_[static_cast<size_t>(layer)], 4);
      }
      const auto want = GetSlots();
      SetSlots(before);
      ++number;
      gpu_->Copy(number_, &number, sizeof(number));
      main_->Run(1, issue);
      main_->Synchronize();
      const auto fault = pull->Check();
      ASSERT_FALSE(fault.has_value()) << where << ": " << *fault;
      ASSERT_EQ(GetSlots(), want) << where;
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        if (!comes(layer)) continue;
        auto got = want;
        for (size_t s = 0; s < got.size(); ++s) {
          gpu_->Copy(got[s].data(), snapshots[static_cast<size_t>(layer)][s].data(), got[s].size());
        }
        const auto l = static_cast<size_t>(layer);
        ASSERT_EQ(RowsOf(l, got), RowsOf(l, want))
            << where << ": layer " << layer << " was not there when it had been waited for";
      }
    }
  }
}

// A list that never arrives: the step ends, the error names the layer, and the next step succeeds.
TEST_F(StepPullTest, PassesItsDeadline) {
  Random random = testing::TestRandom(55);
  const auto pull = Create(200 * 1000 * 1000);
  ASSERT_NE(pull, nullptr);
  BuildLayers(random, 0);
  DrawLists(random);
  pull->SetLayers(layers_, std::vector<uint8_t>(kLayers, 1));
  for (uint32_t number = 1; number < 7; ++number) {
    const bool fails = number % 2 == 1;
    gpu_->Copy(number_, &number, sizeof(number));
    const auto issue = [&] {
      pull->BeginStep(*main_, /*wanted=*/true, number_);
      if (!pull->on()) return;  // the first time: issued, not recorded
      decisions_->Fork(*main_);
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        if (fails && layer == 3) continue;
        pull->Listed(*main_, *pulls_, decisions_->stream(), step_, shape_, layer);
      }
      for (int64_t layer = 0; layer < kLayers; ++layer) pull->Await(*main_, layer);
      decisions_->JoinAll(*main_);
      pulls_->JoinAll(*main_);
    };
    main_->DropGraphs();
    main_->Run(1, issue);
    const auto begin = std::chrono::steady_clock::now();
    main_->Run(1, issue);
    main_->Synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const auto error = pull->Check();
    ASSERT_EQ(error.has_value(), fails);
    if (!fails) continue;
    EXPECT_GE(took.count(), 0.2);
    EXPECT_LT(took.count(), 5);
    EXPECT_THAT(*error, ::testing::HasSubstr("layer 3"));
    EXPECT_THAT(*error, ::testing::HasSubstr("flag"));
    EXPECT_FALSE(pull->Check().has_value());
  }
}

// Policy litecache with one sequence at a time, whose steps are recorded from the second one on.
TEST(StepPullOfLiteCache, AgreesWithTheReference) {
  if (FindCudaDevices().devices.empty()) {
    GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
  }
  Random random = testing::TestRandom(56);
  for (int round = 0; round < testing::Rounds(6); ++round) {
    const Layout layout{
        .layers = 6, .q_heads = 8, .kv_heads = 4, .head_dim = 64, .dtype = DType::kBF16};
    KvOptions options;
    options.policy = "litecache";
    options.retriever = "exact";
    options.budget = KvBudget::Parse("40");
    options.recent_tokens = 8;
    options.thresholds = "fixed";
    options.eta = round % 2 == 0 ? 1 : 0.9;  // 1: every step refreshes
    options.delta_update = round % 4 < 2;
    options.prefetch = round % 2 == 0 ? "2" : "on";
    options.transfer = "gpu-pull";
    if (round % 3 > 0 && SlotsKeepCodes(layout, options, "cuda")) {
      options.host_rows = round % 3 == 1 ? "fp8" : "int8";
    }
    Harness harness(layout, options, nullptr, 0.1, random(), kPlenty, "cuda");
    auto& cache = dynamic_cast<CudaLiteCache&>(harness.any_cache());
    const SequenceId id = harness.Create(), other = harness.Create();
    harness.Step({{id, 300, false}});
    harness.Step({{other, 90, false}});
    bool one_pull = false;  // in a recorded step
    for (int i = 0; i < testing::Tokens(60); ++i) {
      // Occasional steps of both sequences, with separate pulls; a step that fails half way.
      if (i % 8 == 5) {
        harness.Step({{id}, {other}});
      } else {
        harness.Step({{i % 16 == 9 ? other : id}}, i % 10 == 6 ? Uniform(random, 0, 5) : -1);
      }
      if (::testing::Test::HasFailure()) return;
      one_pull = one_pull || (cache.step_pull() != nullptr && cache.step_pull()->on());
    }
    // Without the single kernel, as under tools that run one kernel at a time, the above tested
    // pulls of each layer.
    EXPECT_EQ(one_pull, cache.step_pull() != nullptr);
  }
}

}  // namespace
}  // namespace litecache::kv

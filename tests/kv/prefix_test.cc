// Sequences that begin with rows of others: forked from a prefix, or imported block by block. They
// must continue exactly like sequences that processed all their tokens.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/cuda_devices.h"
#include "device/machine.h"
#include "kv/cache_plan.h"
#include "kv/device_test.h"
#include "kv/heads/prediction_sources.h"
#include "kv/litecache/harness.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

template <class T>
T Pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

// The inputs of a text: those of every layer for token t, whichever cache runs it and in whatever
// chunks.
class Text {
 public:
  Text(const Layout& layout, int64_t tokens, uint64_t seed) : layout_(layout) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](int64_t columns) {
      std::vector<float> values(static_cast<size_t>(layout.layers * tokens * columns));
      for (float& x : values) x = normal(random);
      return values;
    };
    tokens_ = tokens;
    q_ = fill(q_columns());
    k_ = fill(kv_columns());
    v_ = fill(kv_columns());
    // Queries rotate slowly, so that some lookups hit.
    for (int64_t layer = 0; layer < layout.layers; ++layer) {
      for (int64_t i = q_columns(); i < tokens * q_columns(); ++i) {
        float* q = q_.data() + layer * tokens * q_columns();
        q[i] = 0.95f * q[i - q_columns()] + 0.31f * q[i];
      }
    }
  }

  // Runs tokens [Length(id), Length(id) + rows) on the stream of `device`; returns the outputs,
  // layer after layer.
  std::vector<float> Run(Cache& cache, Device& device, Stream& stream, SequenceId id, int64_t rows,
                         bool decode) {
    const int64_t past = cache.Length(id);
    const Step step{{{id, 0, rows, past, decode}}, rows, decode ? 1 : 0};
    cache.BeginStep(step);
    StepInputs inputs;
    for (int64_t layer = 0; layer < layout_.layers; ++layer) {
      inputs.q.push_back(Rows(q_, q_columns(), layer, past, rows));
      inputs.predicted.push_back(inputs.q.back());
      inputs.k.push_back(Rows(k_, kv_columns(), layer, past, rows));
      inputs.v.push_back(Rows(v_, kv_columns(), layer, past, rows));
    }
    std::vector<float> result;
    for (const auto& out : RunLayers(cache, device, stream, step, inputs, 0.3f, layout_.layers)) {
      result.insert(result.end(), out.begin(), out.end());
    }
    cache.EndStep(step);
    return result;
  }

 private:
  int64_t q_columns() const { return layout_.q_heads * layout_.head_dim; }
  int64_t kv_columns() const { return layout_.kv_heads * layout_.head_dim; }
  std::vector<float> Rows(const std::vector<float>& values, int64_t columns, int64_t layer,
                          int64_t begin, int64_t rows) const {
    const float* first = values.data() + (layer * tokens_ + begin) * columns;
    return {first, first + rows * columns};
  }

  Layout layout_;
  int64_t tokens_ = 0;
  std::vector<float> q_, k_, v_;
};

struct Setting {
  Layout layout;
  KvOptions options;
};

std::ostream& operator<<(std::ostream& out, const Setting& s) {
  return out << s.options.policy << " " << s.options.retriever << " host rows "
             << s.options.host_rows << " " << Name(s.layout.dtype) << " head_dim "
             << s.layout.head_dim << " dense layers " << s.options.dense_layers << " recent "
             << s.options.recent_tokens << " budget " << s.options.budget.ToString();
}

Setting RandomSetting(std::mt19937_64& random) {
  Setting s;
  const int64_t kv_heads = 1 + static_cast<int64_t>(random() % 3);
  KvOptions& o = s.options;
  o.prefetch = Pick<std::string>(random, {"off", "on", "2", "4"});
  s.layout = {.layers = 1 + static_cast<int64_t>(random() % 3) +
                        static_cast<int64_t>(random() % 2) *
                            LayersAhead(PredictionSources(o, 16, DeviceType::kCuda)),
              .q_heads = kv_heads * (1 + static_cast<int64_t>(random() % 3)),
              .kv_heads = kv_heads,
              .head_dim = Pick<int64_t>(random, {16, 32, 64, 128}),
              .dtype = Pick(random, {DType::kF32, DType::kBF16})};
  o.policy =
      Pick<std::string>(random, {"full", "litecache", "litecache", "litecache", "litecache"});
  o.retriever = Pick<std::string>(random, {"exact", "hata", "keys", "keys2", "quest", "loki"});
  o.hata_bits = Pick(random, {128, 256});
  o.hata_norms = random() % 2 == 0;
  o.budget = KvBudget::Parse(Pick<std::string>(random, {"10%", "30%", "40", "100%"}));
  o.sink_tokens = static_cast<int64_t>(random() % 5);
  o.recent_tokens = Pick<int64_t>(random, {1, 7, 32});
  o.carry_tokens = Pick<int64_t>(random, {0, 5, 60});
  o.thresholds = "fixed";
  o.eta = Pick(random, {0.7, 0.9});
  o.resident_first_layer = random() % 2 == 0;
  o.dense_layers = random() % 4 == 0;
  o.resident_full_attention = random() % 3 == 0;
  o.host_rows = Pick<std::string>(random, {"auto", "auto", "fp8", "int8", "int4"});
  return s;
}

// A cache with its own plan.
struct Rig {
  explicit Rig(const Setting& s, Device& device, const TierBytes& budget = kPlenty)
      : cache(MakeCachePlan(s.layout, s.options, nullptr, device.type())->Create(device, budget)) {}
  std::unique_ptr<Cache> cache;
};

// The inputs of one round of a test.
struct Trial {
  Setting setting;
  std::mt19937_64& random;
  Device& device;
  Stream& stream;
};

// Runs a test's rounds, each with a random setting, until one fails fatally.
template <class Round>
void ForRandomSettings(uint64_t seed, int rounds, const Round& round,
                       const std::string& device_name = "cpu") {
  if (device_name == "cuda" && FindCudaDevices().devices.empty()) {
    GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
  }
  std::mt19937_64 random = testing::TestRandom(seed);
  const Machine machine = OpenMachine(device_name, 2);
  Device& device = machine.compute();
  const auto stream = device.CreateStream();
  // On a GPU every layer of a step is waited for: a fraction of the rounds takes the same time.
  if (device.type() == DeviceType::kCuda) rounds = (rounds + 4) / 5;
  for (int i = 0; i < rounds && !::testing::Test::HasFatalFailure(); ++i) {
    const Trial trial{RandomSetting(random), random, device, *stream};
    SCOPED_TRACE(::testing::Message() << "round " << i << ": " << trial.setting);
    round(trial);
  }
}

void ExpectSame(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

class PrefixSharing : public ::testing::TestWithParam<const char*> {};

TEST_P(PrefixSharing, AForkGoesOnLikeASequenceOfItsOwn) {
  const auto round = [](const Trial& trial) {
    const auto& [setting, random, device, stream] = trial;
    Rig shared(setting, device), own(setting, device);
    const int64_t prompt = 16 + static_cast<int64_t>(random() % 700);
    const int64_t answer = static_cast<int64_t>(random() % 50);
    const int64_t more = 1 + static_cast<int64_t>(random() % 60);
    const int64_t steps = 1 + static_cast<int64_t>(random() % 40);
    Text text(setting.layout, prompt + answer + more + steps + 20, random());

    const SequenceId parent = shared.cache->Create();
    const SequenceId lonely = own.cache->Create();
    const int64_t chunk = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(prompt));
    for (const int64_t rows : {chunk, prompt - chunk}) {
      if (rows == 0) continue;
      text.Run(*shared.cache, device, stream, parent, rows, false);
      text.Run(*own.cache, device, stream, lonely, rows, false);
    }
    for (int64_t i = 0; i < answer; ++i) {
      text.Run(*shared.cache, device, stream, parent, 1, true);
      text.Run(*own.cache, device, stream, lonely, 1, true);
    }
    // Generated rows were rounded before their keys were encoded, a prompt's rows after.
    const int64_t longest = setting.layout.dtype == DType::kF32
                                ? shared.cache->PrefixLength(parent)
                                : std::min(prompt, shared.cache->PrefixLength(parent));
    ASSERT_GE(longest, prompt);
    const auto cuts = static_cast<uint64_t>(longest / kPrefixTokens);
    const int64_t cut = kPrefixTokens * static_cast<int64_t>(1 + random() % cuts);
    const SequenceId child = shared.cache->ForkPrefix(parent, cut);
    EXPECT_EQ(shared.cache->Length(child), cut);
    const SequenceId fresh = own.cache->Create();
    text.Run(*own.cache, device, stream, fresh, cut, false);

    // The parent either continues or has been released.
    const bool released = random() % 2 == 0;
    if (released) shared.cache->Release(parent);
    ExpectSame(text.Run(*shared.cache, device, stream, child, more, false),
               text.Run(*own.cache, device, stream, fresh, more, false), "the rest of the prompt");
    for (int64_t i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      ExpectSame(text.Run(*shared.cache, device, stream, child, 1, true),
                 text.Run(*own.cache, device, stream, fresh, 1, true), "a decode step");
      if (released) continue;
      ExpectSame(text.Run(*shared.cache, device, stream, parent, 1, true),
                 text.Run(*own.cache, device, stream, lonely, 1, true), "the parent's decode step");
    }
    if (::testing::Test::HasFatalFailure()) return;
    shared.cache->Release(child);
    if (!released) shared.cache->Release(parent);
    EXPECT_EQ(shared.cache->GetStats().used, TierBytes{});
  };
  ForRandomSettings(71, 60, round, GetParam());
}

TEST_P(PrefixSharing, ImportedBlocksAreTheRowsThatWereExported) {
  const auto round = [](const Trial& trial) {
    const auto& [setting, random, device, stream] = trial;
    Rig first(setting, device), second(setting, device);
    const int64_t blocks = 1 + static_cast<int64_t>(random() % 4);
    const int64_t prompt = blocks * kBlockTokens + static_cast<int64_t>(random() % 200);
    const int64_t more = 1 + static_cast<int64_t>(random() % 60);
    const int64_t steps = 1 + static_cast<int64_t>(random() % 30);
    Text text(setting.layout, prompt + more + steps, random());
    const SequenceId source = first.cache->Create();
    text.Run(*first.cache, device, stream, source, prompt, false);
    const SequenceId fresh = first.cache->ForkPrefix(source, blocks * kBlockTokens);

    const SequenceId copy = second.cache->Create();
    std::vector<std::byte> bytes(first.cache->BlockBytes());
    ASSERT_EQ(bytes.size(), second.cache->BlockBytes());
    for (int64_t block = 0; block < blocks; ++block) {
      first.cache->ExportBlock(source, block * kBlockTokens, bytes);
      second.cache->ImportBlock(copy, bytes);
      std::vector<std::byte> again(bytes.size());
      second.cache->ExportBlock(copy, block * kBlockTokens, again);
      EXPECT_EQ(bytes, again);
    }
    EXPECT_EQ(second.cache->Length(copy), blocks * kBlockTokens);
    ExpectSame(text.Run(*second.cache, device, stream, copy, more, false),
               text.Run(*first.cache, device, stream, fresh, more, false),
               "the rest of the prompt");
    for (int64_t i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      ExpectSame(text.Run(*second.cache, device, stream, copy, 1, true),
                 text.Run(*first.cache, device, stream, fresh, 1, true), "a decode step");
    }
    if (::testing::Test::HasFatalFailure()) return;
    second.cache->Release(copy);
    EXPECT_EQ(second.cache->GetStats().used, TierBytes{});
  };
  ForRandomSettings(72, 40, round, GetParam());
}

TEST_P(PrefixSharing, AnImportThatDoesNotFitChangesNothing) {
  const auto round = [](const Trial& trial) {
    const auto& [setting, random, device, stream] = trial;
    const auto plan = MakeCachePlan(setting.layout, setting.options, nullptr, device.type());
    Rig roomy(setting, device);
    const TierBytes budget = plan->BytesFor(2 * kBlockTokens);
    Rig tight(setting, device, budget);
    Text text(setting.layout, 2 * kBlockTokens, random());
    const SequenceId source = roomy.cache->Create();
    text.Run(*roomy.cache, device, stream, source, 2 * kBlockTokens, false);
    std::vector<std::byte> bytes(roomy.cache->BlockBytes());
    roomy.cache->ExportBlock(source, 0, bytes);

    const SequenceId id = tight.cache->Create();
    int64_t imported = 0;
    const auto fill = [&] {
      for (; imported < 1000; ++imported) tight.cache->ImportBlock(id, bytes);
    };
    EXPECT_THROW(fill(), CapacityError);
    EXPECT_GE(imported, 2);
    EXPECT_EQ(tight.cache->Length(id), imported * kBlockTokens);
    const TierBytes used = tight.cache->GetStats().used;
    EXPECT_EQ(tight.cache->BytesHeld(std::vector<SequenceId>{id}), used);
    EXPECT_THROW(tight.cache->ImportBlock(id, bytes), CapacityError);
    EXPECT_EQ(tight.cache->GetStats().used, used);
    tight.cache->Release(id);
    EXPECT_EQ(tight.cache->GetStats().used, TierBytes{});
  };
  ForRandomSettings(73, 10, round, GetParam());
}

TEST_P(PrefixSharing, SharedPagesAreHeldOnce) {
  const auto round = [](const Trial& trial) {
    const auto& [setting, random, device, stream] = trial;
    Rig rig(setting, device);
    Text text(setting.layout, 2000, random());
    const SequenceId parent = rig.cache->Create();
    text.Run(*rig.cache, device, stream, parent, 1000, false);
    std::vector<SequenceId> kept;
    for (int i = 0; i < 5; ++i) {
      kept.push_back(
          rig.cache->ForkPrefix(parent, kPrefixTokens * static_cast<int64_t>(1 + random() % 62)));
    }
    const SequenceId longest = rig.cache->ForkPrefix(parent, 992);
    kept.push_back(longest);
    rig.cache->Release(parent);
    EXPECT_EQ(rig.cache->BytesHeld(kept), rig.cache->GetStats().used);
    EXPECT_EQ(rig.cache->BytesHeld(std::vector<SequenceId>{longest}), rig.cache->GetStats().used);
    for (const SequenceId id : kept) rig.cache->Release(id);
    EXPECT_EQ(rig.cache->GetStats().used, TierBytes{});
  };
  ForRandomSettings(74, 10, round, GetParam());
}

// A block's rows have the same bytes on every device, and each device accepts the other's: a store
// on disk serves both. A GPU keeps the scales of 8-bit rows separately.
TEST(Prefix, BlocksGoFromDeviceToDevice) {
  if (FindCudaDevices().devices.empty()) {
    GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
  }
  std::mt19937_64 random = testing::TestRandom(76);
  const Machine machines[] = {OpenMachine("cpu", 2), OpenMachine("cuda", 2)};
  // auto is the rows' own type on a CPU, and often int8 on a GPU.
  for (const char* rows : {"full", "fp8", "int8", "int4"}) {
    Setting setting = RandomSetting(random);
    setting.options.policy = "litecache";
    setting.options.retriever = "exact";  // no metadata: a block contains only rows
    setting.options.host_rows = rows;
    SCOPED_TRACE(::testing::Message() << setting);
    Text text(setting.layout, 2 * kBlockTokens, random());
    std::vector<std::vector<std::byte>> blocks;
    for (const Machine& machine : machines) {
      Rig rig(setting, machine.compute());
      const auto stream = machine.compute().CreateStream();
      const SequenceId id = rig.cache->Create();
      text.Run(*rig.cache, machine.compute(), *stream, id, 2 * kBlockTokens, false);
      blocks.emplace_back(rig.cache->BlockBytes());
      rig.cache->ExportBlock(id, kBlockTokens, blocks.back());
    }
    ASSERT_EQ(blocks[0], blocks[1]);
    for (const Machine& machine : machines) {
      Rig rig(setting, machine.compute());
      const SequenceId id = rig.cache->Create();
      rig.cache->ImportBlock(id, blocks[0]);
      std::vector<std::byte> again(blocks[0].size());
      rig.cache->ExportBlock(id, 0, again);
      EXPECT_EQ(again, blocks[0]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PrefixSharing, ::testing::Values("cpu", "cuda"), DeviceName());

TEST(Prefix, IdentityTellsSettingsApart) {
  std::mt19937_64 random = testing::TestRandom(75);
  Setting setting = RandomSetting(random);
  setting.options.policy = "litecache";
  setting.options.retriever = "hata";
  setting.options.dense_layers = 0;
  const auto identity = [](const Setting& s) {
    return MakeCachePlan(s.layout, s.options, nullptr)->Identity();
  };
  EXPECT_EQ(identity(setting), identity(setting));
  const auto differs = [&](const auto& change) {
    Setting other = setting;
    change(&other);
    EXPECT_NE(identity(other), identity(setting));
  };
  differs([](Setting* s) { s->options.policy = "full"; });
  differs([](Setting* s) { s->options.retriever = "quest"; });
  differs([](Setting* s) { s->options.hata_bits = 384 - s->options.hata_bits; });
  differs([](Setting* s) { s->options.hata_norms = !s->options.hata_norms; });
  differs([](Setting* s) {
    s->options.hata_norms = true;
    s->options.hata_group = s->options.hata_group == "sum" ? "softmax" : "sum";
  });
  differs(
      [](Setting* s) { s->options.host_rows = s->options.host_rows == "fp8" ? "int8" : "fp8"; });
  differs([](Setting* s) { s->options.budget = KvBudget::Parse("77"); });
  differs([](Setting* s) { s->options.eta = 0.123; });
  differs([](Setting* s) { s->options.resident_first_layer = !s->options.resident_first_layer; });
  differs([](Setting* s) { ++s->layout.layers; });
}

}  // namespace
}  // namespace litecache::kv

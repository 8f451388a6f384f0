// Drafted tokens of recurrent layers: what is accepted has the same bits as in a cache that has
// never seen the rejected ones, and agrees with double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/machine.h"
#include "expect_error.h"
#include "kv/device_test.h"
#include "kv/random_life.h"
#include "kv/recurrent/recurrent_cache.h"
#include "kv/truncation.h"
#include "ops/gated_delta_testing.h"

namespace litecache::kv {
namespace {

using ops::GatedDeltaShape;

constexpr TierBytes kPlenty{.device = uint64_t{1} << 30};

std::vector<float> Normal(ops::Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = random.Normal();
  return values;
}

// A token at one layer: its inputs, and what the cache has given for it.
struct LayerToken {
  std::vector<float> qkv, gate, rate, step, out;
};
using Token = std::vector<LayerToken>;  // [layer]

class Layers {
 public:
  Layers(Device& device, ops::Random& random, const GatedDeltaShape& shape, int64_t count)
      : device_(device), shape_(shape), on_device_(device), step_(device) {
    for (int64_t i = 0; i < count; ++i) {
      const ops::DeltaCase& w = weights_.emplace_back(random, shape, 1, 0);
      const auto copy = [&](const std::vector<float>& values) {
        return on_device_.Copy(values.data(), DType::kF32, 1, std::ssize(values)).Row<float>(0);
      };
      of_layers_.push_back(
          {copy(w.filter), copy(w.log_rate), copy(w.rate_bias), copy(w.norm), kNormEps});
    }
  }
  Layout layout() const {
    Layout layout{.layers = std::ssize(weights_), .q_heads = 1, .kv_heads = 1, .head_dim = 8};
    layout.delta = shape_;
    return layout;
  }

  Token Draw(ops::Random& random) const {
    Token token;
    for (size_t i = 0; i < weights_.size(); ++i) {
      token.push_back({Normal(random, shape_.channels()),
                       Normal(random, shape_.width()),
                       Normal(random, shape_.value_heads),
                       Normal(random, shape_.value_heads),
                       {}});
    }
    return token;
  }

  // Runs a step over the tokens [step.rows] and sets what they give.
  void Run(Cache& cache, Stream& stream, const Step& step, const std::vector<Token*>& tokens) {
    cache.BeginStep(step);
    for (size_t layer = 0; layer < weights_.size(); ++layer) {
      const auto gather = [&](std::vector<float> LayerToken::*part, int64_t cols) {
        ops::Matrix matrix(DType::kF32, step.rows, cols);
        for (int64_t row = 0; row < step.rows; ++row) {
          const std::vector<float>& values = (*tokens[static_cast<size_t>(row)])[layer].*part;
          std::copy(values.begin(), values.end(), matrix.Row(row));
        }
        return step_.Copy(matrix.Row(0), DType::kF32, step.rows, cols);
      };
      step_.Clear();
      const ops::GatedDeltaInputs inputs{.qkv = gather(&LayerToken::qkv, shape_.channels()),
                                         .gate = gather(&LayerToken::gate, shape_.width()),
                                         .rate = gather(&LayerToken::rate, shape_.value_heads),
                                         .step = gather(&LayerToken::step, shape_.value_heads)};
      ops::Matrix out(DType::kF32, step.rows, shape_.width());
      const MatrixView on_device = step_.Copy(out.Row(0), DType::kF32, step.rows, shape_.width());
      const ops::Matrix scratch(DType::kF32, step.rows, shape_.channels());
      cache.Recur(stream, static_cast<int64_t>(layer), step, of_layers_[layer], inputs,
                  step_.Copy(scratch.view().data, DType::kF32, step.rows, shape_.channels()),
                  on_device);
      stream.Synchronize();
      device_.Download(out.Row(0), on_device.data,
                       static_cast<size_t>(step.rows * shape_.width()) * sizeof(float));
      for (int64_t row = 0; row < step.rows; ++row) {
        (*tokens[static_cast<size_t>(row)])[layer].out.assign(out.Row(row),
                                                              out.Row(row) + shape_.width());
      }
    }
    cache.EndStep(step);
  }

  // Compares what a sequence's tokens have given with double precision.
  void CompareWithReference(ops::Random& random, const std::vector<Token>& tokens) {
    const auto rows = std::ssize(tokens);
    for (size_t layer = 0; layer < weights_.size() && rows > 0; ++layer) {
      ops::DeltaCase all(random, shape_, rows, 0);
      all.filter = weights_[layer].filter;
      all.log_rate = weights_[layer].log_rate;
      all.rate_bias = weights_[layer].rate_bias;
      all.norm = weights_[layer].norm;
      for (int64_t row = 0; row < rows; ++row) {
        const LayerToken& token = tokens[static_cast<size_t>(row)][layer];
        std::ranges::copy(token.qkv, all.qkv.Row(row));
        std::ranges::copy(token.gate, all.gate.Row(row));
        std::ranges::copy(token.rate, all.rate.Row(row));
        std::ranges::copy(token.step, all.step.Row(row));
      }
      const std::vector<ops::DeltaRows> one = {{0, rows, 0}};
      const auto want =
          Refer(all, one, ops::RandomStates(random, shape_, one), kNormEps, /*out_rounding=*/0);
      int64_t wrong = 0;
      for (size_t cell = 0; cell < want.out.size(); ++cell) {
        const auto width = static_cast<size_t>(shape_.width());
        const double value = tokens[cell / width][layer].out[cell % width];
        wrong += std::abs(value - want.out[cell]) <= want.out_tolerance[cell] ? 0 : 1;
      }
      EXPECT_EQ(wrong, 0) << "of " << want.out.size() << " outputs, layer " << layer;
    }
  }

 private:
  static constexpr float kNormEps = 1e-2f;

  Device& device_;
  GatedDeltaShape shape_;
  std::vector<ops::DeltaCase> weights_;
  DeviceInputs on_device_;  // the weights
  std::vector<ops::GatedDeltaWeights> of_layers_;
  DeviceInputs step_;  // a layer's inputs and outputs
};

class Life {
 public:
  Life(const std::string& device, ops::Random& random, const GatedDeltaShape& shape, int64_t layers,
       int64_t draft_tokens)
      : machine_(OpenMachine(device, 2)),
        device_(machine_.compute()),
        random_(random),
        layers_(device_, random, shape, layers),
        draft_tokens_(draft_tokens),
        stream_(device_.CreateStream()) {
    const auto plan = PlanRecurrentCache(layers_.layout(), device_.type());
    plain_ = plan->Create(device_, kPlenty);
    EXPECT_FALSE(plain_->CanTruncate());
    plan->PlanDrafts(draft_tokens);
    cache_ = plan->Create(device_, kPlenty);
    EXPECT_TRUE(cache_->CanTruncate());
    EXPECT_EQ(cache_->BytesFor(5), plan->BytesFor(5));
    EXPECT_EQ(plan->BytesFor(5), 2 * plain_->BytesFor(5));
    sequences_[cache_->Create()];
  }

  void Go(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      if (OneIn(8)) sequences_[cache_->Create()];
      if (OneIn(8)) Fork();
      if (OneIn(12) && sequences_.size() > 2) {
        Compare(Any());
        cache_->Release(last_);
        sequences_.erase(last_);
      }
      std::vector<Part> parts;
      for (const auto& [id, tokens] : sequences_) {
        switch (random_.Integer(0, 5)) {
          case 0:
            continue;
          case 1:
            parts.push_back({id, random_.Integer(1, 20), false});
            break;
          case 2:
            parts.push_back({id, 1, true});
            break;
          case 3:
            parts.push_back({id, 1, true, /*drafted=*/true});
            break;
          default:
            parts.push_back({id, random_.Integer(1, 1 + draft_tokens_), false, /*drafted=*/true});
        }
      }
      if (parts.empty()) continue;
      RunStep(parts);
      // A draft of several decode steps.
      while (!OneIn(3)) RunStep({{Any(), 1, true, /*drafted=*/true}});
      if (OneIn(4)) Fork();
      while (!OneIn(3)) TakeBack(Any());
    }
    for (const auto& [id, tokens] : sequences_) Compare(id);
    while (!sequences_.empty()) {
      cache_->Release(sequences_.begin()->first);
      sequences_.erase(sequences_.begin());
    }
    EXPECT_EQ(cache_->GetStats().used, TierBytes{});
  }

  int64_t rejected = 0, repeated = 0;  // tokens

 private:
  bool OneIn(int64_t n) { return random_.Integer(1, n) == 1; }
  SequenceId Any() {
    auto any = sequences_.begin();
    std::advance(any, random_.Integer(0, std::ssize(sequences_) - 1));
    return last_ = any->first;
  }
  void Fork() {
    const SequenceId id = cache_->Fork(Any());
    sequences_[id] = sequences_.at(last_);
  }

  void RunStep(const std::vector<Part>& parts) {
    const Step step = MakeStep(*cache_, parts);
    std::vector<Token*> rows;
    for (const StepSequence& part : step.sequences) {
      std::vector<Token>& tokens = sequences_.at(part.id);
      const size_t past = tokens.size();
      for (int64_t i = 0; i < part.rows; ++i) tokens.push_back(layers_.Draw(random_));
      for (size_t i = past; i < tokens.size(); ++i) rows.push_back(&tokens[i]);
    }
    layers_.Run(*cache_, *stream_, step, rows);
    CheckMemory();
  }

  void TakeBack(SequenceId id) {
    const int64_t length = cache_->Length(id);
    const int64_t shortest = dynamic_cast<const LimitedTruncation&>(*cache_).ShortestLength(id);
    if (shortest > 0) {
      EXPECT_ERROR(cache_->Truncate(id, shortest - 1), InvalidArgument, "take back at most");
      EXPECT_EQ(cache_->Length(id), length);
    }
    const int64_t tokens = random_.Integer(shortest, length);
    cache_->Truncate(id, tokens);
    sequences_.at(id).resize(static_cast<size_t>(tokens));
    EXPECT_EQ(cache_->Length(id), tokens);
    rejected += length - tokens;
    if (tokens < length) repeated += tokens - shortest;
    CheckMemory();
  }

  void CheckMemory() {
    TierBytes limit;
    std::vector<SequenceId> ids;
    for (const auto& [id, tokens] : sequences_) {
      limit += cache_->BytesFor(std::ssize(tokens));
      ids.push_back(id);
    }
    EXPECT_LE(cache_->GetStats().used.device, limit.device);
    EXPECT_EQ(cache_->GetStats().used, cache_->BytesHeld(ids));
  }

  // What the sequence's tokens have given, and what the next ones would.
  void Compare(SequenceId id) {
    std::vector<Token>& tokens = sequences_.at(id);
    RunStep({{id, 3, false}});
    std::vector<Token> alone = tokens;
    const SequenceId other = plain_->Create();
    for (int64_t begin = 0; begin < std::ssize(alone);) {
      const int64_t rows = std::min(random_.Integer(1, 40), std::ssize(alone) - begin);
      std::vector<Token*> part;
      for (int64_t i = 0; i < rows; ++i) part.push_back(&alone[static_cast<size_t>(begin + i)]);
      layers_.Run(*plain_, *stream_, MakeStep(*plain_, {{other, rows, false}}), part);
      begin += rows;
    }
    plain_->Release(other);
    int64_t wrong = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (size_t layer = 0; layer < tokens[i].size(); ++layer) {
        const std::vector<float>& got = tokens[i][layer].out;
        wrong += std::memcmp(got.data(), alone[i][layer].out.data(), got.size() * 4) == 0 ? 0 : 1;
      }
    }
    EXPECT_EQ(wrong, 0) << "of " << tokens.size() << " tokens";
    layers_.CompareWithReference(random_, tokens);
  }

  Machine machine_;
  Device& device_;
  ops::Random& random_;
  Layers layers_;
  const int64_t draft_tokens_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Cache> plain_, cache_;
  std::map<SequenceId, std::vector<Token>> sequences_;
  SequenceId last_ = 0;
};

class RecurrentDraftsTest : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, RecurrentDraftsTest, ::testing::Values("cpu", "cuda"),
                         DeviceName());

TEST_P(RecurrentDraftsTest, LeaveWhatTheAcceptedTokensWouldHaveLeft) {
  ops::Random random;
  int64_t rejected = 0, repeated = 0;
  for (int round = 0; round < 6 && !::testing::Test::HasFailure(); ++round) {
    const int64_t key_heads = random.Integer(1, 2);
    const GatedDeltaShape shape{.key_heads = key_heads,
                                .value_heads = key_heads * random.Integer(1, 3),
                                .key_dim = random.Integer(1, 30),
                                .value_dim = random.Integer(1, 40),
                                .taps = random.Integer(1, 5),
                                .tiled = random.Integer(0, 1) == 1};
    const int64_t draft_tokens = random.Integer(1, 63);
    SCOPED_TRACE(::testing::Message()
                 << shape.key_heads << " key heads of " << shape.key_dim << ", "
                 << shape.value_heads << " of " << shape.value_dim << ", " << shape.taps
                 << " taps, " << draft_tokens << " drafted");
    Life life(device(), random, shape, random.Integer(1, 3), draft_tokens);
    life.Go(30);
    rejected += life.rejected;
    repeated += life.repeated;
  }
  EXPECT_GT(rejected, 100);
  EXPECT_GT(repeated, 100);
}

TEST(RecurrentDrafts, HaveAPlan) {
  CpuDevice device(1);
  Layout layout{.layers = 4, .q_heads = 2, .kv_heads = 1, .head_dim = 16, .dtype = DType::kF32};
  layout.delta = {.key_heads = 2, .value_heads = 6, .key_dim = 5, .value_dim = 5, .taps = 4};
  layout.recurrent = {true, true, true, false};
  const auto plan = MakeCachePlan(layout, {.policy = "full"}, nullptr);
  const TierBytes rows =
      MakeCachePlan(
          {.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16, .dtype = DType::kF32},
          {.policy = "full"}, nullptr)
          ->BytesFor(10);
  const uint64_t states = plan->BytesFor(10).device - rows.device;
  const uint64_t scratch = plan->ScratchBytes(3, 100, 1);
  plan->PlanDrafts(7);
  EXPECT_EQ(plan->BytesFor(10).device, rows.device + 2 * states);
  // Inputs of three layers (qkv, rate and step) and one output, of eight tokens.
  EXPECT_EQ(plan->ScratchBytes(3, 100, 1) - scratch, 8u * (3 * 3 * (50 + 2 * 6) + 30) * 4);

  // Room for two sequences without drafts, or one with them.
  const auto cache = plan->Create(device, {.device = 2 * rows.device + 2 * states});
  const SequenceId first = cache->Create(), second = cache->Create();
  const auto step = [&](SequenceId id, int64_t count, bool drafted) {
    return Step{{{id, 0, count, cache->Length(id), false, false, drafted}}, count, 0};
  };
  for (const SequenceId id : {first, second}) {
    cache->BeginStep(step(id, 3, false));
    cache->EndStep(step(id, 3, false));
  }
  EXPECT_ERROR(cache->BeginStep(step(first, 9, true)), InvalidArgument, "8 drafted tokens", "7");
  EXPECT_THROW(cache->BeginStep(step(first, 4, true)), CapacityError);
  EXPECT_ERROR(cache->Truncate(first, 2), InvalidArgument, "cannot go back to 2", "at most 0");
  EXPECT_EQ(cache->Length(first), 3);
  cache->Release(second);
  cache->BeginStep(step(first, 4, true));
  cache->EndStep(step(first, 4, true));
  EXPECT_EQ(cache->GetStats().used.device, plan->BytesFor(7).device);
  cache->Truncate(first, 3);
  EXPECT_EQ(cache->GetStats().used.device, rows.device + states);
  EXPECT_EQ(cache->Length(first), 3);
  // After a step without drafts nothing of the last one can be taken back.
  for (const bool drafted : {true, false}) {
    cache->BeginStep(step(first, 2, drafted));
    cache->EndStep(step(first, 2, drafted));
  }
  EXPECT_EQ(cache->GetStats().used.device, rows.device + states);
  EXPECT_ERROR(cache->Truncate(first, 6), InvalidArgument, "at most 0");
}

}  // namespace
}  // namespace litecache::kv

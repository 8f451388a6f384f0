#include "lab/policies/retroinfer/tests/retroinfer_driver.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "kv/device_test.h"
#include "lab/policies/retroinfer/options.h"

namespace litecache::lab {
namespace {

// Rounded as in the engine's storage.
double Stored(DType dtype, float x) {
  return static_cast<double>(dtype == DType::kBF16 ? static_cast<float>(bf16(x)) : x);
}

}  // namespace

Step MakeRetroStep(const Cache& cache, std::vector<RetroPart> parts) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const RetroPart& a, const RetroPart& b) { return a.decode > b.decode; });
  Step step;
  for (const RetroPart& part : parts) {
    step.sequences.push_back(
        {part.id, step.rows, part.rows, cache.Length(part.id), part.decode, part.ends_prompt});
    step.rows += part.rows;
    step.decode_rows += part.decode;
  }
  return step;
}

void RetroSource::Fork(SequenceId parent, SequenceId child) {
  streams_[child] = streams_[parent];
  streams_[child].random.seed(seed_ + 1000003 * static_cast<uint64_t>(child));
}

RetroInputs RetroSource::Draw(const Step& step) {
  RetroInputs inputs;
  const auto q_cols = static_cast<size_t>(layout_.q_heads * layout_.head_dim);
  const auto kv_cols = static_cast<size_t>(layout_.kv_heads * layout_.head_dim);
  const auto rows = static_cast<size_t>(step.rows);
  for (int64_t layer = 0; layer < layout_.layers; ++layer) {
    inputs.q.emplace_back(rows * q_cols);
    inputs.k.emplace_back(rows * kv_cols);
    inputs.v.emplace_back(rows * kv_cols);
  }
  std::normal_distribution<float> normal;
  for (const StepSequence& part : step.sequences) {
    auto [found, fresh] = streams_.try_emplace(part.id);
    Stream& s = found->second;
    if (fresh) {
      s.random.seed(seed_ + 1000003 * static_cast<uint64_t>(part.id));
      for (int i = 0; i < 12; ++i) {
        s.centers.emplace_back(kv_cols);
        for (float& x : s.centers.back()) x = 1.5f * normal(s.random);
      }
      for (int64_t layer = 0; layer < layout_.layers; ++layer) {
        s.query.emplace_back(q_cols);
        for (float& x : s.query.back()) x = normal(s.random);
      }
    }
    for (int64_t row = 0; row < part.rows; ++row) {
      const auto at = static_cast<size_t>(part.first_row + row);
      for (size_t layer = 0; layer < inputs.q.size(); ++layer) {
        for (size_t i = 0; i < q_cols; ++i) {
          float& x = s.query[layer][i];
          x = 0.9f * x + 0.44f * normal(s.random);
          inputs.q[layer][at * q_cols + i] = 1.5f * x;
        }
        const auto& center = s.centers[s.random() % s.centers.size()];
        for (size_t i = 0; i < kv_cols; ++i) {
          inputs.k[layer][at * kv_cols + i] = center[i] + 0.7f * normal(s.random) + 1;
          inputs.v[layer][at * kv_cols + i] = normal(s.random);
        }
      }
    }
  }
  return inputs;
}

std::vector<std::vector<float>> RunRetro(Device& device, Cache& cache, litecache::Stream& stream,
                                         const Step& step, RetroInputs& inputs, int64_t layers) {
  const Layout& layout = cache.layout();
  const int64_t q_cols = layout.q_heads * layout.head_dim;
  const int64_t kv_cols = layout.kv_heads * layout.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(layout.head_dim));
  DeviceInputs memory(device);
  const auto copy = [&](const std::vector<float>& values, int64_t cols) {
    return memory.Copy(values.data(), DType::kF32, step.rows, cols);
  };
  std::vector<MatrixView> views;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    views.push_back(copy(std::vector<float>(inputs.q[l].size(), NAN), q_cols));
    cache.Attend(stream, layer, step, copy(inputs.q[l], q_cols), copy(inputs.k[l], kv_cols),
                 copy(inputs.v[l], kv_cols), scale, views.back());
  }
  stream.Synchronize();
  std::vector<std::vector<float>> outs;
  for (const MatrixView& view : views) {
    outs.emplace_back(static_cast<size_t>(step.rows * q_cols));
    device.Download(outs.back().data(), view.data, outs.back().size() * sizeof(float));
  }
  return outs;
}

RetroDriver::RetroDriver(const Layout& layout, const KvOptions& options, uint64_t seed,
                         const std::string& device, const TierBytes& budget, int threads)
    : layout_(layout),
      shape_(layout, options, TypeOf(device)),
      machine_(OpenMachine(device, threads)),
      stream_(machine_.compute().CreateStream()),
      owned_(PlanRetroCache(layout, options, TypeOf(device))->Create(machine_.compute(), budget)),
      cache_(&dynamic_cast<WaveCache&>(*owned_)),
      source_(layout, seed),
      scale_(1.0f / std::sqrt(static_cast<float>(layout.head_dim))) {
  cache_->set_choices(&choices_);
}

SequenceId RetroDriver::Create() {
  const SequenceId id = cache_->Create();
  Sequence& sequence = sequences_[id];
  sequence.heads.resize(static_cast<size_t>(shape_.lists));
  sequence.indexed_end = shape_.sink;
  charges_[id] = {};
  return id;
}

SequenceId RetroDriver::Fork(SequenceId parent) {
  const SequenceId id = cache_->Fork(parent);
  Sequence& source = sequences_[parent];
  if (source.prompt && source.prompt_end >= shape_.least_indexed()) source.told = true;
  source_.Fork(parent, id);
  sequences_[id] = sequences_[parent];
  for (Head& head : sequences_[id].heads) head.lru.clear();
  const int64_t length = cache_->Length(parent);
  charges_[id] = {.fork = true, .shared = length, .tokens = length};
  charges_[parent].forked = true;
  return id;
}

void RetroDriver::Release(SequenceId id) {
  cache_->Release(id);
  sequences_.erase(id);
  if (!charges_[id].forked) charges_.erase(id);  // its pages may still be used by its forks
}

void RetroDriver::CheckMemory(const kv::Step& step) {
  for (const StepSequence& part : step.sequences) {
    Charge& charge = charges_[part.id];
    charge.tokens = std::max(charge.tokens, part.past + part.rows);
  }
  TierBytes limit;
  bool exact = true;
  for (const auto& [id, charge] : charges_) {
    limit += charge.fork ? cache_->ForkBytesFor(charge.shared, charge.tokens)
                         : cache_->BytesFor(charge.tokens);
    exact = exact && !charge.fork && !charge.forked;
  }
  const TierBytes used = cache_->GetStats().used;
  EXPECT_TRUE(used.FitsIn(limit));
  // Decoding sequences take exactly the promised memory; on a GPU the staging memory of their
  // prompts is free again.
  if (exact && !shape_.on_gpu && static_cast<size_t>(step.decode_rows) == charges_.size()) {
    EXPECT_EQ(used, limit);
  }
}

void RetroDriver::Append(const kv::Step& step, const RetroInputs& inputs) {
  const auto d = static_cast<size_t>(layout_.head_dim);
  const auto cols = static_cast<size_t>(layout_.kv_heads) * d;
  for (const StepSequence& part : step.sequences) {
    for (int64_t list = 0; list < shape_.lists; ++list) {
      Head& head = sequences_[part.id].heads[static_cast<size_t>(list)];
      const auto layer = static_cast<size_t>(list / layout_.kv_heads);
      const size_t column = static_cast<size_t>(list % layout_.kv_heads) * d;
      for (int64_t row = 0; row < part.rows; ++row) {
        const size_t at = static_cast<size_t>(part.first_row + row) * cols + column;
        Row key(d), value(d);
        for (size_t i = 0; i < d; ++i) {
          key[i] = Stored(layout_.dtype, inputs.k[layer][at + i]);
          value[i] = Stored(layout_.dtype, inputs.v[layer][at + i]);
        }
        head.keys.push_back(key);
        head.values.push_back(value);
      }
    }
  }
}

void RetroDriver::Expect(Sequence* sequence, int64_t past) const {
  const RetroInferOptions& o = shape_.o;
  const auto add = [&](int64_t end, int64_t clusters, int64_t nprobe, int64_t estimated) {
    sequence->indexed_end = end;
    sequence->clusters += clusters;
    sequence->nprobe += nprobe;
    sequence->estimated += estimated;
  };
  if (sequence->prompt && sequence->clusters == 0 &&
      sequence->prompt_end >= shape_.sink + shape_.recent + o.update_tokens) {
    const WaveGrowth prompt = shape_.Prompt(sequence->prompt_end);
    add(sequence->prompt_end - shape_.recent, prompt.clusters, prompt.nprobe, prompt.estimated);
  }
  sequence->prompt = false;
  const double of_update =
      static_cast<double>(o.update_tokens) / static_cast<double>(o.cluster_tokens);
  const int64_t clusters =
      std::max<int64_t>(static_cast<int64_t>(std::nearbyint(of_update)) / 8 * 8, 8);
  const auto share = [&](double part) {
    return std::max<int64_t>(
        static_cast<int64_t>(std::nearbyint(static_cast<double>(clusters) * part)), 1);
  };
  while (past - shape_.recent - sequence->indexed_end >= o.update_tokens) {
    const int64_t nprobe = std::min(share(o.retrieval), clusters);
    add(sequence->indexed_end + o.update_tokens, clusters, nprobe,
        o.estimation > 0 ? std::min(share(o.estimation), clusters - nprobe) : 0);
  }
}

void RetroDriver::Learn(const StepSequence& part, Sequence* sequence) {
  const WaveCache::IndexInfo info = cache_->Index(part.id);
  ASSERT_EQ(info.indexed_end, sequence->indexed_end) << "past " << part.past;
  ASSERT_EQ(info.clusters, sequence->clusters);
  ASSERT_EQ(info.nprobe, sequence->nprobe);
  ASSERT_EQ(info.estimated, sequence->estimated);
  const auto d = static_cast<size_t>(layout_.head_dim);
  for (int64_t list = 0; list < shape_.lists; ++list) {
    Head& head = sequence->heads[static_cast<size_t>(list)];
    const auto known = static_cast<int64_t>(head.clusters.size());
    if (known == info.clusters) continue;
    const int64_t layer = list / layout_.kv_heads, kv_head = list % layout_.kv_heads;
    std::map<std::vector<double>, int64_t> tokens;
    for (size_t t = 0; t < head.keys.size(); ++t) tokens[head.keys[t]] = static_cast<int64_t>(t);
    std::set<int64_t> clustered;
    for (const auto& cluster : head.clusters) clustered.insert(cluster.begin(), cluster.end());
    for (int64_t c = known; c < info.clusters; ++c) {
      head.clusters.emplace_back();
      Row key_sum(d, 0.0), value_sum(d, 0.0);
      for (const auto& row : cache_->ClusterRows(part.id, layer, kv_head, c)) {
        const std::vector<double> key(row.begin(), row.begin() + static_cast<int64_t>(d));
        ASSERT_TRUE(tokens.contains(key)) << "a row of cluster " << c << " is no token's";
        const int64_t token = tokens[key];
        ASSERT_TRUE(clustered.insert(token).second) << "token " << token << " is in two clusters";
        head.clusters.back().push_back(token);
        for (size_t i = 0; i < d; ++i) {
          ASSERT_EQ(static_cast<double>(row[d + i]), head.values[static_cast<size_t>(token)][i]);
          key_sum[i] += key[i];
          value_sum[i] += static_cast<double>(row[d + i]);
        }
      }
      const std::vector<float> index = cache_->Cluster(part.id, layer, kv_head, c);
      const auto count = static_cast<double>(head.clusters.back().size());
      Row centroid(index.begin(), index.begin() + static_cast<int64_t>(d));
      Row sum(index.begin() + static_cast<int64_t>(d), index.end());
      const double rounding = layout_.dtype == DType::kBF16 ? 1.0 / 256 : 1e-5;
      for (size_t i = 0; count > 0 && i < d; ++i) {
        ASSERT_NEAR(centroid[i], key_sum[i] / count, rounding * (1 + std::abs(key_sum[i] / count)));
        ASSERT_NEAR(sum[i], value_sum[i], rounding * (1 + std::abs(value_sum[i])));
      }
      head.centroids.push_back(centroid);
      head.sums.push_back(sum);
    }
    ASSERT_EQ(static_cast<int64_t>(clustered.size()), info.indexed_end - shape_.sink);
    ASSERT_EQ(*clustered.begin(), shape_.sink);
    ASSERT_EQ(*clustered.rbegin(), info.indexed_end - 1);
  }
}

void RetroDriver::Step(const std::vector<RetroPart>& parts, int64_t fail_after) {
  const kv::Step step = MakeRetroStep(*cache_, parts);
  RetroInputs inputs = source_.Draw(step);
  if (fail_after >= 0) {
    cache_->BeginStep(step);
    RunRetro(machine_.compute(), *cache_, *stream_, step, inputs,
             std::min(fail_after, layout_.layers));
    // What the failed attempt has cached remains.
    for (const StepSequence& part : step.sequences) {
      if (!part.decode) continue;
      for (int64_t list = 0; list < shape_.lists; ++list) {
        const auto held = cache_->Cached(part.id, list / layout_.kv_heads, list % layout_.kv_heads);
        sequences_[part.id].heads[static_cast<size_t>(list)].lru = {held.begin(), held.end()};
      }
    }
  }
  choices_.clear();
  cache_->BeginStep(step);
  CheckMemory(step);
  const auto outs = RunRetro(machine_.compute(), *cache_, *stream_, step, inputs, layout_.layers);
  cache_->Settle();
  Append(step, inputs);
  const int64_t q_cols = layout_.q_heads * layout_.head_dim;
  for (const StepSequence& part : step.sequences) {
    Sequence& sequence = sequences_[part.id];
    if (part.decode) {
      Expect(&sequence, part.past);
      Learn(part, &sequence);
      if (::testing::Test::HasFatalFailure()) return;
    } else {
      sequence.prompt = true;
      if (!sequence.told) {
        sequence.prompt_end = part.past + part.rows;
        sequence.told = part.ends_prompt && sequence.prompt_end >= shape_.least_indexed();
      }
    }
    for (int64_t layer = 0; layer < layout_.layers; ++layer) {
      const auto l = static_cast<size_t>(layer);
      const float* q = inputs.q[l].data() + part.first_row * q_cols;
      const float* out = outs[l].data() + part.first_row * q_cols;
      if (part.decode) {
        CheckDecode(part, layer, q, out);
      } else {
        CheckPrefill(part, layer, q, out);
      }
    }
  }
  cache_->EndStep(step);
  CheckMemory(step);
}

void RetroDriver::Abandon(const std::vector<RetroPart>& parts, int64_t layers) {
  const kv::Step step = MakeRetroStep(*cache_, parts);
  RetroInputs inputs = source_.Draw(step);
  cache_->BeginStep(step);
  for (const StepSequence& part : step.sequences) {  // pages taken stay taken
    Charge& charge = charges_[part.id];
    charge.tokens = std::max(charge.tokens, part.past + part.rows);
    charge.forked = true;
  }
  RunRetro(machine_.compute(), *cache_, *stream_, step, inputs, layers);
}

}  // namespace litecache::lab

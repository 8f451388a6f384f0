#include "lab/policies/retroinfer/tests/retroinfer_driver.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <span>

#include "kv/attention_error.h"
#include "kv/device_test.h"
#include "lab/policies/retroinfer/options.h"

namespace litecache::kv {
namespace {

double Dot(const float* q, const std::vector<double>& key) {
  double sum = 0;
  for (size_t i = 0; i < key.size(); ++i) sum += static_cast<double>(q[i]) * key[i];
  return sum;
}

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

void RetroDriver::CheckChoice(const Sequence& sequence, const Head& head, const RetroChoice& choice,
                              const float* q) {
  const auto clusters = static_cast<size_t>(sequence.clusters);
  std::vector<double> scores(clusters, 0.0);
  size_t filled = 0;
  for (size_t c = 0; c < clusters; ++c) filled += !head.clusters[c].empty();
  for (int64_t j = 0; j < shape_.group; ++j) {
    std::vector<double> x(clusters);
    double maximum = -HUGE_VAL, sum = 0;
    for (size_t c = 0; c < clusters; ++c) {
      x[c] = static_cast<double>(scale_) * Dot(q + j * layout_.head_dim, head.centroids[c]);
      if (!head.clusters[c].empty()) maximum = std::max(maximum, x[c]);
    }
    for (size_t c = 0; c < clusters; ++c) {
      if (!head.clusters[c].empty()) sum += std::exp(x[c] - maximum);
    }
    for (size_t c = 0; c < clusters; ++c) scores[c] += std::exp(x[c] - maximum) / sum;
  }
  const auto nprobe = static_cast<size_t>(sequence.nprobe);
  const size_t wanted = std::min(static_cast<size_t>(sequence.nprobe + sequence.estimated), filled);
  ASSERT_EQ(choice.retrieved.size() + choice.estimated.size(), wanted);
  std::set<int32_t> chosen;
  const auto take = [&](int32_t c) {
    ASSERT_FALSE(head.clusters[static_cast<size_t>(c)].empty());
    ASSERT_TRUE(chosen.insert(c).second);
  };
  // The execution buffer takes clusters in order until one does not fit.
  int64_t blocks = 0;
  const auto blocks_of = [&](int32_t c) {
    const auto size = static_cast<int64_t>(head.clusters[static_cast<size_t>(c)].size());
    return (size + shape_.o.block_tokens - 1) / shape_.o.block_tokens;
  };
  const auto score = [&](int32_t c) { return scores[static_cast<size_t>(c)]; };
  // A GPU multiplies queries as two parts of 8 bits each.
  const double rounding = shape_.on_gpu && layout_.dtype == DType::kBF16 ? 1e-3 : 1e-4;
  const auto near = [rounding](double x) { return rounding * x + 1e-9; };
  for (size_t i = 0; i < choice.retrieved.size(); ++i) {
    take(choice.retrieved[i]);
    blocks += blocks_of(choice.retrieved[i]);
    if (i > 0) {
      ASSERT_LE(score(choice.retrieved[i]),
                score(choice.retrieved[i - 1]) + near(score(choice.retrieved[i - 1])));
    }
  }
  ASSERT_LE(blocks, shape_.BufferBlocks(sequence.nprobe));
  for (const int32_t c : choice.estimated) take(c);
  if (choice.retrieved.size() < std::min(nprobe, wanted)) {
    ++overflows_;
    ASSERT_GT(blocks + blocks_of(choice.estimated.front()), shape_.BufferBlocks(sequence.nprobe));
  }
  double least_retrieved = HUGE_VAL, least = HUGE_VAL;
  for (const int32_t c : choice.retrieved) least_retrieved = std::min(least_retrieved, score(c));
  for (const int32_t c : choice.estimated) {
    least = std::min(least, score(c));
    if (choice.retrieved.size() == nprobe) {
      ASSERT_LE(score(c), least_retrieved + near(score(c)));
    }
  }
  least = std::min(least, least_retrieved);
  for (size_t c = 0; c < clusters; ++c) {
    if (head.clusters[c].empty() || chosen.contains(static_cast<int32_t>(c))) continue;
    ASSERT_LE(scores[c], least + near(scores[c]));
  }
}

void RetroDriver::CheckCache(SequenceId id, const Sequence& sequence, int64_t layer,
                             int64_t kv_head, const RetroChoice& choice) {
  const int64_t list = shape_.List(layer, kv_head);
  Head& head = sequences_[id].heads[static_cast<size_t>(list)];
  std::vector<int32_t> hits, misses;
  const auto blocks_of = [&](int32_t c) {
    const auto size = static_cast<int64_t>(head.clusters[static_cast<size_t>(c)].size());
    return (size + shape_.o.block_tokens - 1) / shape_.o.block_tokens;
  };
  for (const int32_t c : choice.retrieved) {
    const bool held = std::find(head.lru.begin(), head.lru.end(), c) != head.lru.end();
    (held ? hits : misses).push_back(c);
  }
  ASSERT_EQ(choice.hits, hits);
  for (auto hit = hits.rbegin(); hit != hits.rend(); ++hit) {
    head.lru.remove(*hit);
    head.lru.push_front(*hit);
  }
  const int64_t capacity = shape_.CacheBlocks(sequence.nprobe);
  int64_t used = 0, needed = 0;
  size_t admitted = 0;
  for (const int32_t c : head.lru) used += blocks_of(c);
  while (admitted < misses.size() && needed + blocks_of(misses[admitted]) <= capacity) {
    needed += blocks_of(misses[admitted++]);
  }
  while (used + needed > capacity) {
    used -= blocks_of(head.lru.back());
    head.lru.pop_back();
  }
  for (size_t i = 0; i < admitted; ++i) head.lru.push_front(misses[i]);
  const std::vector<int32_t> expected(head.lru.begin(), head.lru.end());
  ASSERT_EQ(cache_->Cached(id, layer, kv_head), expected);
  auto rows = cache_->CachedRows(id, layer, kv_head);
  for (const int32_t c : expected) {
    ASSERT_EQ(rows[c], cache_->ClusterRows(id, layer, kv_head, c)) << "cluster " << c;
  }
}

void RetroDriver::CheckDecode(const StepSequence& part, int64_t layer, const float* q,
                              const float* out) {
  const Sequence& sequence = sequences_[part.id];
  const auto d = static_cast<size_t>(layout_.head_dim);
  const int64_t n = part.past + 1;
  for (int64_t kv_head = 0; kv_head < layout_.kv_heads; ++kv_head) {
    const Head& head = sequence.heads[static_cast<size_t>(shape_.List(layer, kv_head))];
    const float* queries = q + kv_head * shape_.group * layout_.head_dim;
    RetroChoice choice;
    if (sequence.clusters > 0) {
      ASSERT_TRUE(choices_.contains({part.id, layer, kv_head}));
      choice = choices_[{part.id, layer, kv_head}];
      CheckChoice(sequence, head, choice, queries);
      if (::testing::Test::HasFatalFailure()) return;
      CheckCache(part.id, sequence, layer, kv_head, choice);
      if (::testing::Test::HasFatalFailure()) return;
    }
    // A GPU multiplies queries with centroids as two parts of 8 bits each.
    const double tolerance = std::max(AttentionTolerance(layout_.dtype), shape_.on_gpu ? 1e-3 : 0);
    std::vector<int64_t> exact;
    for (int64_t t = 0; t < std::min(shape_.sink, n); ++t) exact.push_back(t);
    for (int64_t t = sequence.indexed_end; t < n; ++t) exact.push_back(t);
    for (const int32_t c : choice.retrieved) {
      const auto& tokens = head.clusters[static_cast<size_t>(c)];
      exact.insert(exact.end(), tokens.begin(), tokens.end());
    }
    for (int64_t j = 0; j < shape_.group; ++j) {
      const float* query = queries + j * layout_.head_dim;
      std::vector<double> numerator(d, 0.0);
      double denominator = 0, maximum = -HUGE_VAL;
      std::vector<double> x, y;
      for (const int64_t t : exact) {
        x.push_back(static_cast<double>(scale_) * Dot(query, head.keys[static_cast<size_t>(t)]));
        maximum = std::max(maximum, x.back());
      }
      for (const int32_t c : choice.estimated) {
        y.push_back(static_cast<double>(scale_) *
                    Dot(query, head.centroids[static_cast<size_t>(c)]));
        maximum = std::max(maximum, y.back());
      }
      for (size_t i = 0; i < exact.size(); ++i) {
        const double weight = std::exp(x[i] - maximum);
        denominator += weight;
        for (size_t e = 0; e < d; ++e) {
          numerator[e] += weight * head.values[static_cast<size_t>(exact[i])][e];
        }
      }
      for (size_t i = 0; i < choice.estimated.size(); ++i) {
        const auto c = static_cast<size_t>(choice.estimated[i]);
        const double weight = std::exp(y[i] - maximum);
        denominator += static_cast<double>(head.clusters[c].size()) * weight;
        for (size_t e = 0; e < d; ++e) numerator[e] += weight * head.sums[c][e];
      }
      for (double& x : numerator) x /= denominator;
      const std::span got(out + (kv_head * shape_.group + j) * layout_.head_dim, d);
      ASSERT_LE(testing::RelativeError(got, numerator), tolerance)
          << "sequence " << part.id << " layer " << layer << " past " << part.past;
    }
  }
}

void RetroDriver::CheckPrefill(const StepSequence& part, int64_t layer, const float* q,
                               const float* out) {
  const Sequence& sequence = sequences_[part.id];
  const auto d = static_cast<size_t>(layout_.head_dim);
  const int64_t q_cols = layout_.q_heads * layout_.head_dim;
  // The first and the last row, and some in between.
  for (int64_t row = 0; row < part.rows; row += std::max<int64_t>(part.rows / 5, 1)) {
    for (int64_t h = 0; h < layout_.q_heads; ++h) {
      const Head& head = sequence.heads[static_cast<size_t>(shape_.List(layer, h / shape_.group))];
      const float* query = q + row * q_cols + h * layout_.head_dim;
      std::vector<double> sum(d, 0.0);
      double total = 0;
      for (int64_t t = 0; t <= part.past + row; ++t) {
        const auto at = static_cast<size_t>(t);
        const double weight = std::exp(static_cast<double>(scale_) * Dot(query, head.keys[at]));
        total += weight;
        for (size_t e = 0; e < d; ++e) sum[e] += weight * head.values[at][e];
      }
      for (double& x : sum) x /= total;
      const std::span got(out + row * q_cols + h * layout_.head_dim, d);
      ASSERT_LE(testing::RelativeError(got, sum), AttentionTolerance(layout_.dtype))
          << "prompt of sequence " << part.id << " layer " << layer << " past " << part.past;
    }
  }
}

}  // namespace litecache::kv

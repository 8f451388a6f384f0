#include "bench/runner.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/median.h"
#include "bench/synthetic_rows.h"
#include "bench/synthetic_states.h"
#include "device/machine.h"
#include "kv/row_store.h"

namespace litecache::bench {
namespace {

// Tokens of a synthetic context stored at a time if no attention runs: enough that a head's pages
// are adjacent, as after a prompt in large chunks.
constexpr int64_t kStoreRows = 4096;

// CPU time of all threads of this process.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

kv::Step ChunkStep(kv::SequenceId id, int64_t rows, int64_t past) {
  kv::Step step{.rows = rows};
  step.sequences.push_back({.id = id, .first_row = 0, .rows = rows, .past = past});
  return step;
}

kv::Stats Difference(kv::Stats after, const kv::Stats& before) {
  const auto less = [](kv::Traffic& traffic, const kv::Traffic& by) {
    traffic.rows -= by.rows;
    traffic.bytes -= by.bytes;
  };
  after.bytes_read -= before.bytes_read;
  after.bytes_written -= before.bytes_written;
  after.bytes_scored -= before.bytes_scored;
  less(after.miss, before.miss);
  less(after.prefetch, before.prefetch);
  less(after.spill, before.spill);
  less(after.prefill, before.prefill);
  less(after.admit, before.admit);
  less(after.stream, before.stream);
  less(after.activations, before.activations);
  after.rows_recomputed -= before.rows_recomputed;
  after.lookups -= before.lookups;
  after.hits -= before.hits;
  after.verified -= before.verified;
  after.corrected -= before.corrected;
  return after;
}

}  // namespace

Runner::Runner(Device& device, Stream& stream, model::Decoder& decoder, const MachineRates& rates,
               const RunOptions& options)
    : device_(device),
      stream_(stream),
      decoder_(decoder),
      rates_(rates),
      options_(options),
      random_(options.seed) {}

void Runner::CheckContext(int64_t tokens) const {
  const int64_t limit = decoder_.config().max_context;
  if (tokens < 1 || tokens > limit) {
    throw InvalidArgument("a context of {} tokens is not between 1 and the model's {}", tokens,
                          limit);
  }
}

int32_t Runner::NextToken() {
  if (!options_.tokens.empty()) {
    next_token_ = (next_token_ + 1) % options_.tokens.size();
    return options_.tokens[next_token_];
  }
  return static_cast<int32_t>(random_() % static_cast<uint64_t>(decoder_.config().vocab));
}

void Runner::FillByPrefill(kv::Cache& cache, std::span<const kv::SequenceId> sequences,
                           int64_t tokens, const std::function<void(int64_t)>& progress) {
  const int64_t vocab = decoder_.config().vocab, total = std::ssize(sequences) * tokens;
  const Buffer logits =
      device_.Allocate(sequences.size() * static_cast<size_t>(vocab) * sizeof(float));
  for (int64_t done = 0; done < total;) {
    kv::Step step{.rows = std::min(options_.prefill_chunk, total - done)};
    std::vector<int32_t> ids(static_cast<size_t>(step.rows)), positions(ids.size());
    std::vector<int64_t> logit_rows;
    for (int64_t row = 0; row < step.rows;) {
      const int64_t past = (done + row) % tokens, rows = std::min(tokens - past, step.rows - row);
      const bool ends = past + rows == tokens;
      step.sequences.push_back({.id = sequences[static_cast<size_t>((done + row) / tokens)],
                                .first_row = row,
                                .rows = rows,
                                .past = past,
                                .ends_prompt = ends});
      for (int64_t i = 0; i < rows; ++i, ++row) {
        ids[static_cast<size_t>(row)] = NextToken();
        positions[static_cast<size_t>(row)] = static_cast<int32_t>(past + i);
      }
      if (ends) logit_rows.push_back(row - 1);
    }
    decoder_.Forward(
        stream_, step, ids, positions, cache, logit_rows,
        MatrixView::Of(logits.as<float>(), static_cast<int64_t>(logit_rows.size()), vocab));
    stream_.Synchronize();
    done += step.rows;
    progress(step.rows);
  }
}

void Runner::FillSynthetic(kv::Cache& cache, std::span<const kv::SequenceId> ids, int64_t tokens,
                           const std::function<void(int64_t)>& progress) {
  const kv::Layout& layout = cache.layout();
  const int64_t q_width = layout.q_heads * layout.head_dim;
  const int64_t kv_width = layout.kv_heads * layout.head_dim;
  auto* store = cache.WantsInputs() ? nullptr : dynamic_cast<kv::RowStore*>(&cache);
  const int64_t rows = std::min(store != nullptr ? kStoreRows : options_.prefill_chunk, tokens);
  SyntheticRows values(device_, DType::kF32, rows, std::max(q_width, kv_width), options_.seed);
  const Buffer out = store != nullptr
                         ? Buffer()
                         : device_.Allocate(static_cast<size_t>(rows * q_width) * sizeof(float));
  std::optional<SyntheticRows> inputs;
  if (cache.WantsInputs()) {
    // The dtype that a GPU's products read.
    const bool bf16s = device_.type() == DeviceType::kCuda && layout.dtype == DType::kBF16;
    inputs.emplace(device_, bf16s ? DType::kBF16 : DType::kF32, rows, layout.hidden, options_.seed);
  }
  std::optional<SyntheticStates> states;
  if (!layout.recurrent.empty()) states.emplace(device_, layout.delta, rows, options_.seed);
  const float scale = 1.0f / std::sqrt(static_cast<float>(layout.head_dim));
  for (const kv::SequenceId id : ids) {
    for (int64_t past = 0; past < tokens;) {
      const int64_t count = std::min(rows, tokens - past);
      const kv::Step step = ChunkStep(id, count, past);
      cache.BeginStep(step);
      for (int64_t layer = 0; layer < layout.layers; ++layer) {
        if (states && layout.recurrent[static_cast<size_t>(layer)]) {
          states->Update(stream_, layer, step, cache);
          continue;
        }
        const MatrixView q = values.Next(count, q_width), k = values.Next(count, kv_width),
                         v = values.Next(count, kv_width);
        if (store != nullptr) {
          store->StoreRows(stream_, layer, step, q, k, v);
          continue;
        }
        if (inputs) {
          cache.KeepInputs(stream_, layer, step, inputs->Next(count, layout.hidden), nullptr);
        }
        cache.Attend(stream_, layer, step, q, k, v, scale,
                     MatrixView::Of(out.as<float>(), count, q_width));
      }
      stream_.Synchronize();
      cache.EndStep(step);
      past += count;
      progress(count);
    }
  }
}

Measurement Runner::Finish(int64_t batch, int64_t context, std::vector<double> seconds,
                           const Cost& cost) const {
  Measurement m;
  m.batch = batch;
  m.context = context;
  const auto [fastest, slowest] = std::minmax_element(seconds.begin(), seconds.end());
  m.slowest = *slowest;
  const double range = *slowest - *fastest;
  m.seconds = Median(std::move(seconds));
  m.spread = range / m.seconds;
  m.cost = cost;
  m.floor_seconds =
      std::max(cost.bytes / rates_.bytes_per_second, cost.flops / rates_.flops_per_second);
  if (rates_.link_bytes_per_second > 0) {
    m.floor_seconds = std::max(m.floor_seconds, cost.link_bytes / rates_.link_bytes_per_second);
  }
  return m;
}

Measurement Runner::Prefill(const kv::CachePlan& plan, int64_t context, const Progress& progress) {
  CheckContext(context);
  const auto cache = plan.Create(device_, plan.BytesFor(context));
  const int64_t total = context * (options_.prefill_repeats + 1);
  int64_t done = 0;
  std::vector<double> seconds;
  const uint64_t weights_before = decoder_.moved_weight_bytes();
  for (int64_t repeat = 0; repeat <= options_.prefill_repeats; ++repeat) {
    const kv::SequenceId id = cache->Create();
    const double time = Seconds([&] {
      FillByPrefill(*cache, {&id, 1}, context,
                    [&](int64_t rows) { progress(done += rows, total); });
      // Waits for work that the GPU still has to do after the prompt, such as an index over its
      // keys.
      cache->Release(id);
    });
    // The first repeat pages memory in and starts threads.
    if (repeat > 0 || options_.prefill_repeats == 0) seconds.push_back(time);
  }
  Cost cost = PrefillCost(decoder_.config(), context, decoder_.weight_bytes_per_step(context));
  cost.link_bytes = static_cast<double>(decoder_.moved_weight_bytes() - weights_before) /
                    static_cast<double>(options_.prefill_repeats + 1);
  return Finish(1, context, std::move(seconds), cost);
}

kv::TierBytes Runner::DecodeKvBytes(const kv::CachePlan& plan, int64_t batch,
                                    int64_t context) const {
  return static_cast<uint64_t>(batch) * plan.BytesFor(context + MoreTokens());
}

void Runner::AllocateForSteps(const kv::CachePlan& plan, int64_t batch, int64_t context,
                              kv::Cache& cache) const {
  const kv::TierBytes used = cache.GetStats().used;
  const kv::TierBytes now = plan.BytesFor(context);
  const kv::TierBytes then = plan.BytesFor(context + MoreTokens());
  const auto grown = [batch](uint64_t from, uint64_t to) {
    return static_cast<uint64_t>(batch) * (std::max(from, to) - from);
  };
  cache.AllocateAhead({.device = used.device + grown(now.device, then.device),
                       .host = used.host + grown(now.host, then.host)});
}

Breakdown Runner::MeasureSections(const std::function<double()>& step, double step_seconds) {
  // Graphs recorded before have no marks, and those recorded here must not be kept.
  litecache::UseGraphs(stream_, options_.graphs);
  Breakdown breakdown;
  {
    SectionTimer timer(stream_);
    std::vector<double> seconds, launches;
    std::array<double, kSections> warm{};
    std::array<int64_t, kSections> warm_counts{};
    for (int64_t i = 0; i < kBreakdownSteps; ++i) {
      if (i == kWarmUpSteps) {
        warm = timer.seconds();
        warm_counts = timer.counts();
      }
      timer.BeginStep();
      const double time = step();
      timer.EndStep();
      if (i < kWarmUpSteps) continue;
      seconds.push_back(time);
      launches.push_back(time - timer.span());
    }
    const auto steps = static_cast<double>(kBreakdownSteps - kWarmUpSteps);
    breakdown.marks = timer.marks();
    if (breakdown.marks > 0) {
      breakdown.mark_seconds = std::max(0.0, Median(std::move(seconds)) - step_seconds) /
                               static_cast<double>(breakdown.marks);
      breakdown.launch = std::clamp(Median(std::move(launches)), 0.0, step_seconds);
    }
    double others = breakdown.launch;
    for (size_t i = 1; i < kSections; ++i) {
      const auto marks = static_cast<double>(timer.counts()[i] - warm_counts[i]);
      breakdown.seconds[i] =
          std::max(0.0, (timer.seconds()[i] - warm[i] - marks * breakdown.mark_seconds) / steps);
      others += breakdown.seconds[i];
    }
    breakdown.seconds[0] = std::max(0.0, step_seconds - others);
  }
  litecache::UseGraphs(stream_, options_.graphs);
  return breakdown;
}

Measurement Runner::Decode(const kv::CachePlan& plan, int64_t batch, int64_t context,
                           const Progress& progress) {
  const int64_t steps = options_.decode_steps + kWarmUpSteps;
  CheckContext(context + MoreTokens());
  const int64_t vocab = decoder_.config().vocab;
  const auto cache = plan.Create(device_, DecodeKvBytes(plan, batch, context));
  const int64_t total = batch * context + MoreTokens();
  int64_t done = 0;
  const auto advance = [&](int64_t amount) { progress(done += amount, total); };

  // The steps that together process one row of every sequence.
  const int64_t together = options_.step_rows > 0 ? std::min(options_.step_rows, batch) : batch;
  std::vector<kv::Step> parts(static_cast<size_t>((batch + together - 1) / together));
  double prompts_seconds = 0, steps_seconds = 0;
  std::vector<kv::SequenceId> sequences;
  for (int64_t i = 0; i < batch; ++i) {
    const kv::SequenceId id = cache->Create();
    sequences.push_back(id);
    kv::Step& step = parts[static_cast<size_t>(i / together)];
    step.sequences.push_back(
        {.id = id, .first_row = step.rows++, .rows = 1, .past = context, .decode = true});
    step.decode_rows = step.rows;
  }
  if (options_.fill == Fill::kSynthetic) {
    FillSynthetic(*cache, sequences, context, advance);
  } else {
    prompts_seconds = Seconds([&] { FillByPrefill(*cache, sequences, context, advance); });
  }

  const auto rows = static_cast<size_t>(batch);
  std::vector<int32_t> ids(rows);
  std::vector<int32_t> positions(rows, static_cast<int32_t>(context));
  std::vector<int64_t> logit_rows(rows);
  for (size_t i = 0; i < rows; ++i) logit_rows[i] = static_cast<int64_t>(i);
  const Buffer logits = device_.Allocate(rows * static_cast<size_t>(vocab) * sizeof(float));
  std::vector<double> seconds;
  kv::Stats before;
  uint64_t weights_before = 0;
  model::ExpertCounts experts_before;
  double cpu_before = 0;
  litecache::UseGraphs(stream_, options_.graphs);
  std::vector<size_t> cursors(rows);  // each sequence's position in the text: its prompt's end
  for (size_t i = 0; i < rows; ++i) cursors[i] = (i + 1) * static_cast<size_t>(context);
  const auto run_step = [&]() -> double {
    for (size_t row = 0; row < rows; ++row) {
      if (!options_.tokens.empty()) next_token_ = cursors[row]++;
      ids[row] = NextToken();
    }
    const double time = Seconds([&] {
      size_t first = 0;
      for (const kv::Step& step : parts) {
        const auto count = static_cast<size_t>(step.rows);
        decoder_.Forward(stream_, step, std::span(ids).subspan(first, count),
                         std::span(positions).subspan(first, count), *cache,
                         std::span(logit_rows).first(count),
                         MatrixView::Of(logits.as<float>(), step.rows, vocab));
        stream_.Synchronize();
        first += count;
      }
    });
    for (kv::Step& step : parts) {
      for (auto& sequence : step.sequences) ++sequence.past;
    }
    for (int32_t& position : positions) ++position;
    advance(1);
    return time;
  };
  for (int64_t i = 0; i < steps; ++i) {
    if (i == kWarmUpSteps) {
      before = cache->GetStats();
      weights_before = decoder_.moved_weight_bytes();
      experts_before = decoder_.expert_counts();
      cpu_before = CpuSeconds();
    }
    const double time = run_step();
    if (i == 0) AllocateForSteps(plan, batch, context, *cache);
    steps_seconds += time;
    if (i >= kWarmUpSteps) seconds.push_back(time);
  }
  const double cpu_seconds = CpuSeconds() - cpu_before;
  const kv::Stats used = Difference(cache->GetStats(), before);
  const auto timed = static_cast<uint64_t>(options_.decode_steps);
  // Moved rows are read on one side and written on the other; with two memories, only one side
  // counts for the device.
  const uint64_t moved = used.miss.bytes + used.prefetch.bytes + used.admit.bytes +
                         used.stream.bytes + used.activations.bytes + used.spill.bytes;
  const uint64_t sides = rates_.link_bytes_per_second > 0 ? 1 : 2;
  kv::Layout all_layers = plan.layout();  // bytes read are those of windows, too
  all_layers.windowed.clear();
  const auto states = static_cast<uint64_t>(batch) * all_layers.state_bytes();
  Cost cost = DecodeCost(decoder_.config(), batch, decoder_.weight_bytes_per_step(batch),
                         used.bytes_read / timed - states,
                         2 * states + (used.bytes_scored + sides * moved) / timed,
                         all_layers.token_bytes());
  const uint64_t weights = decoder_.moved_weight_bytes() - weights_before;
  cost.link_bytes = static_cast<double>(moved + weights) / static_cast<double>(timed);
  Measurement m = Finish(batch, context, std::move(seconds), cost);
  m.kv = used;
  m.experts = decoder_.expert_counts();
  m.experts.lookups -= experts_before.lookups;
  m.experts.hits -= experts_before.hits;
  m.experts.bytes -= experts_before.bytes;
  m.prompts_seconds = prompts_seconds;
  m.steps_seconds = steps_seconds;
  if (options_.breakdown) m.breakdown = MeasureSections(run_step, m.seconds);
  m.cpu_seconds = cpu_seconds / static_cast<double>(timed);
  if (device_.type() == DeviceType::kCuda) {
    const DeviceInfo info = device_.Info();
    m.device_memory = info.total_memory - info.free_memory;
  }
  return m;
}

}  // namespace litecache::bench

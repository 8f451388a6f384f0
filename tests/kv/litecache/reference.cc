#include "kv/litecache/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "kv/layout.h"
#include "kv/litecache/near_ties.h"
#include "ops/common/row_format.h"

namespace litecache::kv {
Reference::Reference(const Layout& layout, const KvOptions& options, const HeadPlan& plan,
                     std::unique_ptr<Retriever> retriever, bool keeps)
    : keeps_(keeps),
      layout_(layout),
      options_(options),
      plan_(plan),
      group_(layout.q_heads / layout.kv_heads),
      store_format_(StoreFormat(layout, options, DeviceType::kCpu)),
      shape_(layout, options, plan, 0, DeviceType::kCpu),
      retriever_(std::move(retriever)),
      stream_(device_.CreateStream()) {}

void Reference::Create(SequenceId id) {
  sequences_[id].heads.resize(static_cast<size_t>(layout_.layers * layout_.kv_heads));
}

void Reference::Fork(SequenceId parent, SequenceId child) {
  Sequence copy = sequences_.at(parent);
  sequences_[child] = std::move(copy);
}

void Reference::KeepCachedRows(int64_t tokens, Sequence* sequence) const {
  bool keep = keeps_ && !AllFit(tokens + 1);
  for (size_t i = 0; i < sequence->heads.size(); ++i) {
    keep = keep && (plan_.heads[i].resident || sequence->heads[i].cached_end <= tokens);
  }
  for (Head& head : sequence->heads) {
    head.filled = head.filled && keep;
    head.ring_filled = false;
  }
}

void Reference::Truncate(SequenceId id, int64_t tokens) {
  Sequence& sequence = sequences_.at(id);
  if (tokens == sequence.length) return;
  const bool shared = retriever_ != nullptr && retriever_->shares_entries();
  const int64_t unit = shared ? retriever_->metadata_unit().tokens : 1;
  for (Head& head : sequence.heads) {
    const auto length = static_cast<size_t>(tokens);
    head.k.resize(length);
    head.v.resize(length);
    head.keys.resize(length);
    if (!head.stored_k.empty()) {
      head.stored_k.resize(length);
      head.stored_v.resize(length);
    }
    if (head.encoded > tokens) head.encoded = tokens / unit * unit;
    head.encoded_keys.resize(static_cast<size_t>(head.encoded));
  }
  sequence.length = tokens;
  sequence.stored = std::min(sequence.stored, tokens);
  if (shape_.SlotPages(sequence.slot_tokens) > shape_.SlotPages(tokens)) {
    // Rows may have been in the pages that are given back.
    for (Head& head : sequence.heads) head.filled = head.ring_filled = false;
    sequence.slot_tokens = tokens;
  } else {
    KeepCachedRows(tokens, &sequence);
  }
}

void Reference::Begin(SequenceId id, int64_t rows, bool decode) {
  Sequence& sequence = sequences_.at(id);
  if (decode) sequence.slot_tokens = std::max(sequence.slot_tokens, sequence.length + rows);
}

void Reference::Commit(SequenceId id, int64_t rows, bool decode) {
  Sequence& sequence = sequences_.at(id);
  sequence.length += rows;
  const int64_t stored = sequence.length - (decode ? options_.recent_tokens : 0);
  sequence.stored = std::max(sequence.stored, stored);
}

Reference::Vector Reference::Round(const float* row) const {
  Vector result(static_cast<size_t>(layout_.head_dim));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = layout_.dtype == DType::kBF16 ? static_cast<float>(bf16(row[i])) : row[i];
  }
  return result;
}

void Reference::Append(const float* k, const float* v, Head* state) const {
  const auto d = static_cast<size_t>(layout_.head_dim);
  state->keys.emplace_back(k, k + d);
  state->k.push_back(Round(k));
  state->v.push_back(Round(v));
  if (!store_format_.quantized()) return;
  const ops::RowFormat f32{ops::RowEncoding::kF32, layout_.head_dim};
  std::vector<float> row(state->k.back().begin(), state->k.back().end());
  row.insert(row.end(), state->v.back().begin(), state->v.back().end());
  auto* bytes = reinterpret_cast<std::byte*>(row.data());
  std::vector<std::byte> codes(store_format_.row_bytes());
  ops::ConvertRow(f32, bytes, store_format_, codes.data());
  ops::ConvertRow(store_format_, codes.data(), f32, bytes);
  state->stored_k.emplace_back(row.data(), row.data() + d);
  state->stored_v.emplace_back(row.data() + d, row.data() + 2 * d);
}

void Reference::Encode(int64_t layer, int64_t head, int64_t end, Head* state, bool given) {
  if (retriever_ == nullptr || retriever_->metadata_tokens() == 0) return;
  const int64_t page_tokens = retriever_->metadata_tokens();
  for (; state->encoded < end; ++state->encoded) {
    const auto page = static_cast<size_t>(state->encoded / page_tokens);
    if (page == state->metadata.size()) {
      state->metadata.emplace_back(PageLayout(layout_).page_bytes, std::byte{0xa5});
    }
    const auto token = static_cast<size_t>(state->encoded);
    std::vector<float> key = state->keys[token];
    if (!given) key.assign(state->k[token].begin(), state->k[token].end());
    state->encoded_keys.push_back(key);
    std::vector<std::byte*> pages;
    for (auto& bytes : state->metadata) pages.push_back(bytes.data());
    EncodeWork work{.layer = layer,
                    .head = head,
                    .keys = key.data(),
                    .key_stride = layout_.head_dim,
                    .begin = state->encoded,
                    .count = 1,
                    .metadata = pages.data()};
    retriever_->Encode(*stream_, {&work, 1});
  }
}

void Reference::Attend(const Head& state, const std::vector<int32_t>& positions,
                       const std::function<bool(int32_t)>& stored, const float* q, float scale,
                       double* out) const {
  const auto d = static_cast<size_t>(layout_.head_dim);
  for (size_t j = 0; j < static_cast<size_t>(group_); ++j) {
    Vector weights;
    double highest = -HUGE_VAL, sum = 0;
    for (const int32_t t : positions) {
      const Vector& key = (stored(t) ? state.stored_k : state.k)[static_cast<size_t>(t)];
      double dot = 0;
      for (size_t c = 0; c < d; ++c) dot += static_cast<double>(q[j * d + c]) * key[c];
      weights.push_back(CappedScore(dot * static_cast<double>(scale), layout_.score_cap));
      highest = std::max(highest, weights.back());
    }
    for (double& w : weights) sum += w = std::exp(w - highest);
    std::fill_n(out + j * d, d, 0.0);
    for (size_t i = 0; i < positions.size(); ++i) {
      const int32_t t = positions[i];
      const Vector& value = (stored(t) ? state.stored_v : state.v)[static_cast<size_t>(t)];
      for (size_t c = 0; c < d; ++c) out[j * d + c] += weights[i] / sum * value[c];
    }
  }
}

void Reference::Prefill(SequenceId id, int64_t layer, int64_t rows, bool drafted, const float* q,
                        const float* k, const float* v, float scale, double* out) {
  Sequence& sequence = sequences_.at(id);
  const int64_t d = layout_.head_dim;
  if (drafted) KeepCachedRows(sequence.length, &sequence);
  for (int64_t head = 0; head < layout_.kv_heads; ++head) {
    Head& state = sequence.heads[static_cast<size_t>(layer * layout_.kv_heads + head)];
    // Tokens generated since the last prompt are encoded from their stored rows.
    Encode(layer, head, sequence.length, &state, /*given=*/false);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = row * layout_.kv_heads * d + head * d;
      Append(k + at, v + at, &state);
    }
    Encode(layer, head, sequence.length + rows, &state, /*given=*/true);
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<int32_t> all(static_cast<size_t>(sequence.length + row + 1));
      std::iota(all.begin(), all.end(), 0);
      const int64_t at = row * layout_.q_heads * d + head * group_ * d;
      // A chunk attends itself exactly, and earlier tokens as stored.
      const int64_t before = Coded(layer, head) ? sequence.length : 0;
      Attend(
          state, all, [&](int32_t t) { return t < before; }, q + at, scale, out + at);
    }
    if (drafted && sequence.length > 0) continue;
    const float* last = q + (rows - 1) * layout_.q_heads * d + head * group_ * d;
    state.label.assign(last, last + group_ * d);
    state.filled = state.ring_filled = false;
  }
}

void Reference::Decode(SequenceId id, int64_t layer, bool keeps_rows, bool whole,
                       const float* predicted_q, const float* q, const float* k, const float* v,
                       float scale, const std::vector<Observed>& observed, double* out) {
  Sequence& sequence = sequences_.at(id);
  const int64_t d = layout_.head_dim;
  const int64_t past = sequence.length, n = past + 1;
  const int64_t sink = options_.sink_tokens, recent = options_.recent_tokens;
  const bool all_resident = plan_.resident_count() == std::ssize(plan_.heads);
  const auto rows_for = [&](int64_t tokens) { return options_.budget.RowsFor(tokens); };
  for (int64_t head = 0; head < layout_.kv_heads; ++head) {
    Head& state = sequence.heads[static_cast<size_t>(layer * layout_.kv_heads + head)];
    const HeadSettings& settings = plan_.at(layer, head);
    const Observed& seen = observed[static_cast<size_t>(head)];
    Encode(layer, head, std::max(n - recent, sequence.stored), &state, /*given=*/false);
    Append(k + head * d, v + head * d, &state);
    const bool coded = Coded(layer, head);
    const std::vector<Vector>& keys = coded ? state.stored_k : state.k;
    const float* query = q + head * group_ * d;
    const float* asked = predicted_q == nullptr ? query : predicted_q + head * group_ * d;
    const Vector exact_query(query, query + group_ * d);
    const Vector asked_query(asked, asked + group_ * d);
    const bool fits = n - recent - sink <= rows_for(n);
    const bool did_fit = past - recent - sink <= rows_for(past);

    if (settings.resident && !settings.dense && !fits && !did_fit && keeps_rows && !keeps_ &&
        all_resident) {
      // What it has.
    } else if (settings.resident) {
      const bool all = settings.dense || fits || whole;
      state.certain = true;
      state.cached = TopK(layer, head, state, keys, exact_query, scale, sink, n - recent,
                          all ? n : rows_for(n), nullptr, &state.certain);
    } else {
      if (!state.filled) {
        // Step 0: the prompt's last query.
        if (past - recent > sink) {
          state.cached = TopK(layer, head, state, keys, state.label, scale, sink, past - recent,
                              rows_for(past), !fits && seen.hit ? &seen.cached : nullptr);
        } else {
          state.cached.clear();
        }
        state.window_begin = state.cached_end = past - recent;
        state.filled = true;
      }
      if (!state.ring_filled) state.filled_at = sequence.stored;
      state.ring_filled = true;
      if (fits) {
        state.window_begin = n - recent;
        state.cached_end = std::max(state.cached_end, state.window_begin);
        state.label = asked_query;
        state.cached =
            TopK(layer, head, state, keys, asked_query, scale, sink, n - recent, n, nullptr);
      } else {
        // If the last lookup missed, nothing shows what the first one did.
        const bool verifies = predicted_q != nullptr && options_.verify_predictions;
        const bool* first = !verifies ? &seen.hit : seen.hit ? &seen.predicted : nullptr;
        ++lookups_;
        const auto tau = static_cast<double>(settings.tau);
        const bool hit = LookUp(layer, head, n, asked_query, scale, tau, first,
                                first != nullptr ? &seen.cached : nullptr, &state);
        hits_ += hit;
        if (verifies) {
          ++verified_;
          // Rows chosen at this step's length, by its prediction or by a query that was taken back.
          const bool fresh = state.window_begin == n - recent;
          const double least = fresh ? static_cast<float>(options_.prediction_eta) : -1.0;
          corrected_ += !LookUp(layer, head, n, exact_query, scale,
                                std::max(tau - options_.prediction_margin, least), &seen.hit,
                                &seen.cached, &state);
        }
      }
      EXPECT_EQ(state.cached, seen.cached)
          << "layer " << layer << " head " << head << " at " << n << " tokens";
    }

    std::set<int32_t> visible(state.cached.begin(), state.cached.end());
    for (int64_t t = 0; t < std::min(sink, n); ++t) visible.insert(static_cast<int32_t>(t));
    // For a resident head no retrieval is ever outdated.
    const int64_t carried = settings.resident ? 0 : options_.carry_tokens;
    const int64_t window =
        carried == 0 ? n - recent : std::max(state.window_begin, n - recent - carried);
    for (int64_t t = std::max<int64_t>(window, 0); t < n; ++t) {
      visible.insert(static_cast<int32_t>(t));
    }
    const std::set<int32_t> cached(state.cached.begin(), state.cached.end());
    Attend(
        state, {visible.begin(), visible.end()},
        [&](int32_t t) { return coded && (t < state.filled_at || cached.count(t) != 0); }, query,
        scale, out + head * group_ * d);
    if (settings.resident && !state.certain) {
      std::fill_n(out + head * group_ * d, group_ * d, std::nan(""));
    }
  }
}

}  // namespace litecache::kv

// A random trace for tests, not recorded from a model.
#pragma once

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <vector>

#include "lab/namespaces.h"
#include "lab/trace/trace.h"

namespace litecache::lab {

// Steps whose rows and queries drift.
inline Trace RandomTrace(std::mt19937_64& random, bool whole_blocks = false) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  Trace t;
  t.layers = 1 + below(4);
  t.kv_heads = 1 + below(3);
  t.q_heads = t.kv_heads * (1 + below(4));
  t.steps = 3 + below(9);
  t.context = 128 * (3 + below(6)) + (whole_blocks ? 0 : below(128));
  t.budget = 0.1;
  t.model = "model";
  t.text = "text \xff";
  t.text_hash = "0123456789abcdef";
  t.retriever = "exact";
  std::uniform_real_distribution<float> share(0, 1);
  for (int64_t i = 0; i < t.layers * t.q_heads; ++i) {
    t.importance.push_back(share(random));
    for (size_t pair = 0; pair < t.pairs(); ++pair) {
      t.cosines.push_back(static_cast<int8_t>(below(255) - 127));
    }
  }
  t.distances = std::min<int64_t>(4, t.layers - 1);
  t.lags = below(t.steps);
  const auto tables = [&](int64_t heads, int64_t least) {
    std::vector<int8_t> values(
        static_cast<size_t>(t.distances * t.layers * heads * t.table_size()));
    TraceQuery a, b;
    for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
      const int64_t distance = 1 + i / (t.layers * heads * t.table_size());
      const int64_t layer = i / (heads * t.table_size()) % t.layers;
      if (layer < distance || !t.TableEntry(i % t.table_size(), distance, &a, &b)) continue;
      values[static_cast<size_t>(i)] = static_cast<int8_t>(least + below(128 - least));
    }
    return values;
  };
  t.predicted_cosines = tables(t.q_heads, -127);
  t.clusters = 5 + below(20);
  t.ranked = 1 + below(t.clusters);
  const auto drift = [&](std::set<int32_t>& rows) {
    for (int64_t changes = below(6); changes > 0; --changes) {
      rows.erase(std::next(rows.begin(), below(static_cast<int64_t>(rows.size()))));
    }
    while (static_cast<int64_t>(rows.size()) < t.context / 10) {
      rows.insert(static_cast<int32_t>(below(t.context)));
    }
  };
  for (int64_t i = 0; i < t.layers * t.kv_heads; ++i) {
    std::set<int32_t> rows;
    while (static_cast<int64_t>(rows.size()) < t.context / 10) {
      rows.insert(static_cast<int32_t>(below(t.context)));
    }
    for (int64_t step = 0; step < t.steps; ++step) {
      drift(rows);
      t.rows.emplace_back(rows.begin(), rows.end());
      std::vector<uint16_t> ids(static_cast<size_t>(t.clusters));
      for (size_t c = 0; c < ids.size(); ++c) ids[c] = static_cast<uint16_t>(c);
      std::shuffle(ids.begin(), ids.end(), random);
      t.cluster_ids.insert(t.cluster_ids.end(), ids.begin(), ids.begin() + t.ranked);
    }
  }
  const size_t sets = t.rows.size();
  for (int64_t distance = 1; distance <= t.distances; ++distance) {
    for (size_t set = 0; set < sets; ++set) {
      std::set<int32_t> rows;
      if (t.Predicts(static_cast<size_t>(distance), set)) {
        rows = {t.rows[set].begin(), t.rows[set].end()};
        drift(rows);
      }
      t.rows.emplace_back(rows.begin(), rows.end());
    }
  }
  return t;
}

}  // namespace litecache::lab

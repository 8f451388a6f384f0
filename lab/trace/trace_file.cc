// The file of a trace.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "kv/cache.h"
#include "lab/trace/bit_stream.h"
#include "lab/trace/recording_file.h"
#include "lab/trace/trace.h"

namespace litecache::lab {
namespace {

constexpr RecordingKind kTraceKind = {"LCTRACE1", "not a trace", "litecache-lab record"};
constexpr int64_t kVersion = 3;

// Far above any recording; products of them fit 64 bits.
constexpr int64_t kMaxLayers = 1 << 10, kMaxHeads = 1 << 12, kMaxSteps = 1 << 12;
constexpr int64_t kMaxContext = 1 << 24, kMaxClusters = 1 << 16;

// Small numbers of either sign as 0, 1, 2, ...: 0, -1, 1, -2, ...
uint32_t Fold(int value) { return static_cast<uint32_t>(value < 0 ? -2 * value - 1 : 2 * value); }
int64_t Unfold(uint32_t number) {
  return number % 2 == 0 ? int64_t{number} / 2 : -(int64_t{number} / 2) - 1;
}

int ClusterBits(const Trace& t) {
  return std::bit_width(static_cast<uint32_t>(std::max<int64_t>(t.clusters, 1) - 1));
}

void ReadHeader(const nlohmann::json& document, const std::string& name, Trace* t) {
  const io::JsonFields fields(document, name);
  if (fields.RequiredInt("version", 0, int64_t{1} << 30) != kVersion) {
    fields.Fail("version",
                fmt::format("this program reads version {}; record the trace again", kVersion));
  }
  t->layers = fields.RequiredInt("layers", 1, kMaxLayers);
  t->q_heads = fields.RequiredInt("q_heads", 1, kMaxHeads);
  t->kv_heads = fields.RequiredInt("kv_heads", 1, kMaxHeads);
  if (t->q_heads % t->kv_heads != 0) {
    fields.Fail("kv_heads", fmt::format("does not divide the {} query heads", t->q_heads));
  }
  t->context = fields.RequiredInt("context", 1, kMaxContext);
  t->steps = fields.RequiredInt("steps", 2, std::min(kMaxSteps, t->context));
  t->distances =
      fields.RequiredInt("distances", 0, std::min<int64_t>(Cache::kMostAhead, t->layers - 1));
  t->lags = fields.RequiredInt("lags", 0, t->steps - 1);
  t->budget = fields.RequiredNumber("budget", 0, 1);
  t->by_need = fields.Bool("by_need").value_or(false);
  t->clusters = fields.RequiredInt("clusters", 0, kMaxClusters);
  t->ranked = fields.RequiredInt("ranked", 0, t->clusters);
  t->model = fields.String("model").value_or("");
  t->fingerprint = fields.String("fingerprint").value_or("");
  t->text = fields.String("text").value_or("");
  t->text_hash = fields.String("text_hash").value_or("");
  t->retriever = fields.String("retriever").value_or("");
  t->created = fields.String("created").value_or("");
}

// Rows: the indices of the rows `before` that are dropped, and the positions that are added, both
// as gaps.
void PutRows(const std::vector<int32_t>& before, const std::vector<int32_t>& rows, BitWriter* out) {
  std::vector<uint32_t> dropped, added;
  size_t next = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (std::ranges::binary_search(rows, before[i])) continue;
    dropped.push_back(static_cast<uint32_t>(i - next));
    next = i + 1;
  }
  int32_t position = 0;
  for (const int32_t row : rows) {
    if (std::ranges::binary_search(before, row)) continue;
    added.push_back(static_cast<uint32_t>(row - position));
    position = row + 1;
  }
  const uint32_t counts[] = {static_cast<uint32_t>(dropped.size()),
                             static_cast<uint32_t>(added.size())};
  out->PutList(counts);
  out->PutList(dropped);
  out->PutList(added);
}

// Ascending positions below `end`, from gaps.
std::vector<int32_t> TakePositions(BitReader* in, uint64_t count, int64_t end,
                                   const std::string& name) {
  std::vector<int32_t> positions;
  int64_t next = 0;
  for (const uint32_t gap : in->TakeList(count, "rows")) {
    next += gap;
    if (next >= end) throw FileError("{}: 'rows': {} is not below {}", name, next, end);
    positions.push_back(static_cast<int32_t>(next++));
  }
  return positions;
}

std::vector<int32_t> TakeRows(const std::vector<int32_t>& before, int64_t context, BitReader* in,
                              const std::string& name) {
  const std::vector<uint32_t> counts = in->TakeList(2, "rows");
  const auto dropped = TakePositions(in, counts[0], static_cast<int64_t>(before.size()), name);
  const auto added = TakePositions(in, counts[1], context, name);
  std::vector<int32_t> kept, rows;
  size_t drop = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (drop < dropped.size() && dropped[drop] == static_cast<int32_t>(i)) {
      ++drop;
    } else {
      kept.push_back(before[i]);
    }
  }
  std::ranges::set_union(kept, added, std::back_inserter(rows));
  return rows;
}

// Each value as the difference from the one before it.
void PutCosines(std::span<const int8_t> values, BitWriter* out) {
  std::vector<uint32_t> numbers;
  int before = 0;
  for (const int value : values) {  // NOLINT(bugprone-signed-char-misuse): numbers, not characters
    numbers.push_back(Fold(value - before));
    before = value;
  }
  out->PutList(numbers);
}

int64_t Within(int64_t value, int64_t least, const char* part, const std::string& name) {
  if (value < least || value > Trace::kUnit) {
    throw FileError("{}: '{}' holds {}; its values lie between {} and {}", name, part, value, least,
                    Trace::kUnit);
  }
  return value;
}

void TakeCosines(size_t count, BitReader* in, const std::string& name, std::vector<int8_t>* out) {
  int64_t before = 0;
  for (const uint32_t number : in->TakeList(count, "cosines")) {
    before = Within(before + Unfold(number), -Trace::kUnit, "cosines", name);
    out->push_back(static_cast<int8_t>(before));
  }
}

// Calls body(distance, layer, head) for the tables that a file holds.
template <class Body>
void ForEachTable(const Trace& t, int64_t heads, const Body& body) {
  for (int64_t distance = 1; distance <= t.distances; ++distance) {
    for (int64_t layer = distance; layer < t.layers; ++layer) {
      for (int64_t head = 0; head < heads; ++head) body(distance, layer, head);
    }
  }
}

int8_t* Table(const Trace& t, int64_t heads, std::vector<int8_t>* tables, int64_t distance,
              int64_t layer, int64_t head) {
  return tables->data() + (((distance - 1) * t.layers + layer) * heads + head) * t.table_size();
}

// Each entry as the difference from the actual queries'.
template <class Actual>
void PutTables(const Trace& t, int64_t heads, std::vector<int8_t> tables, const Actual& actual,
               BitWriter* out) {
  ForEachTable(t, heads, [&](int64_t distance, int64_t layer, int64_t head) {
    const int8_t* table = Table(t, heads, &tables, distance, layer, head);
    std::vector<uint32_t> numbers;
    TraceQuery a, b;
    for (int64_t i = 0; i < t.table_size(); ++i) {
      if (!t.TableEntry(i, distance, &a, &b)) continue;
      numbers.push_back(Fold(table[i] - actual(layer, head, a.step, b.step)));
    }
    out->PutList(numbers);
  });
}

template <class Actual>
std::vector<int8_t> TakeTables(const Trace& t, int64_t heads, int64_t least, const Actual& actual,
                               const char* part, const std::string& name, BitReader* in) {
  std::vector<int8_t> tables(static_cast<size_t>(t.distances * t.layers * heads * t.table_size()));
  ForEachTable(t, heads, [&](int64_t distance, int64_t layer, int64_t head) {
    int8_t* table = Table(t, heads, &tables, distance, layer, head);
    TraceQuery a, b;
    uint64_t count = 0;
    for (int64_t i = 0; i < t.table_size(); ++i) count += t.TableEntry(i, distance, &a, &b) ? 1 : 0;
    const std::vector<uint32_t> numbers = in->TakeList(count, part);
    auto next = numbers.begin();
    for (int64_t i = 0; i < t.table_size(); ++i) {
      if (!t.TableEntry(i, distance, &a, &b)) continue;
      table[i] = static_cast<int8_t>(
          Within(actual(layer, head, a.step, b.step) + Unfold(*next++), least, part, name));
    }
  });
  return tables;
}

const auto kActualCosine = [](const Trace& t) {
  return [&t](int64_t layer, int64_t head, int64_t a, int64_t b) {
    return t.ActualCosine(layer, head, a, b);
  };
};

}  // namespace

std::string Trace::Bytes() const {
  const auto sets = static_cast<size_t>(layers * kv_heads * steps);
  const auto tables = static_cast<size_t>(distances * layers * table_size());
  LC_CHECK(sets > 0);
  LC_CHECK(importance.size() == static_cast<size_t>(layers * q_heads));
  LC_CHECK(cosines.size() == importance.size() * pairs());
  LC_CHECK(rows.size() == static_cast<size_t>(1 + distances) * sets);
  LC_CHECK(predicted_cosines.size() == tables * static_cast<size_t>(q_heads));
  LC_CHECK(cluster_ids.size() == sets * static_cast<size_t>(ranked));
  const nlohmann::ordered_json header = {
      {"version", kVersion},    {"layers", layers},
      {"q_heads", q_heads},     {"kv_heads", kv_heads},
      {"context", context},     {"steps", steps},
      {"distances", distances}, {"lags", lags},
      {"budget", budget},       {"by_need", by_need},
      {"clusters", clusters},   {"ranked", ranked},
      {"model", model},         {"fingerprint", fingerprint},
      {"text", text},           {"text_hash", text_hash},
      {"retriever", retriever}, {"created", created},
  };
  std::string bytes = RecordingStart(kTraceKind, header);
  bytes.append(reinterpret_cast<const char*>(importance.data()), importance.size() * sizeof(float));
  BitWriter out;
  for (size_t head = 0; head < importance.size(); ++head) {
    PutCosines(std::span(cosines).subspan(head * pairs(), pairs()), &out);
  }
  const std::vector<int32_t> none;
  for (size_t i = 0; i < sets; ++i) {
    const bool first = i % static_cast<size_t>(steps) == 0;
    PutRows(first ? none : rows[i - 1], rows[i], &out);
  }
  for (size_t i = sets; i < rows.size(); ++i) {
    if (Predicts(i / sets, i % sets)) PutRows(rows[i % sets], rows[i], &out);
  }
  PutTables(*this, q_heads, predicted_cosines, kActualCosine(*this), &out);
  for (const uint16_t id : cluster_ids) out.Put(id, ClusterBits(*this));
  return bytes + out.bytes();
}

void Trace::Save(const std::filesystem::path& path) const {
  io::WriteFileAtomically(path, Bytes());
}

Trace Trace::Load(const std::filesystem::path& path) {
  return Parse(io::MappedFile(path).bytes(), path.string());
}

Trace Trace::Parse(std::span<const std::byte> file, const std::string& name) {
  const Recording recording = SplitRecording(kTraceKind, file, name);
  Trace t;
  ReadHeader(recording.header, recording.header_name, &t);

  // Sizes are checked against the bytes that exist before memory is allocated.
  const auto q_heads = static_cast<uint64_t>(t.layers * t.q_heads);
  if (q_heads * sizeof(float) > recording.body.size()) {
    throw FileError("{}: ends within 'importance': {} bytes are there, {} are needed", name,
                    recording.body.size(), q_heads * sizeof(float));
  }
  const auto importance = recording.body.first(q_heads * sizeof(float));
  const auto left = recording.body.subspan(importance.size());
  t.importance.resize(q_heads);
  std::memcpy(t.importance.data(), importance.data(), importance.size());
  for (const float value : t.importance) {
    if (!(value >= 0 && value <= 1)) {
      throw FileError("{}: 'importance' holds {}; its values lie between 0 and 1", name, value);
    }
  }
  // Half of a table's entries exist at least, and each takes a bit.
  const auto tables = static_cast<double>(t.distances * t.layers * (t.q_heads + t.kv_heads)) / 4;
  if (tables * static_cast<double>(t.table_size()) / 4 > 8 * static_cast<double>(left.size())) {
    throw FileError("{}: ends within 'predictions': {} bytes are there", name, left.size());
  }
  BitReader in(left, name);
  for (uint64_t head = 0; head < q_heads; ++head) TakeCosines(t.pairs(), &in, name, &t.cosines);
  const std::vector<int32_t> none;
  const auto sets = t.layers * t.kv_heads * t.steps;
  for (int64_t i = 0; i < sets; ++i) {
    t.rows.push_back(TakeRows(i % t.steps == 0 ? none : t.rows.back(), t.context, &in, name));
  }
  for (int64_t i = sets; i < (1 + t.distances) * sets; ++i) {
    const auto set = static_cast<size_t>(i % sets);
    if (t.Predicts(static_cast<size_t>(i / sets), set)) {
      t.rows.push_back(TakeRows(t.rows[set], t.context, &in, name));
    } else {
      t.rows.emplace_back();
    }
  }
  t.predicted_cosines =
      TakeTables(t, t.q_heads, -kUnit, kActualCosine(t), "predicted cosines", name, &in);
  for (int64_t i = 0; i < sets * t.ranked; ++i) {
    t.cluster_ids.push_back(static_cast<uint16_t>(in.Take(ClusterBits(t), "clusters")));
    if (t.cluster_ids.back() >= t.clusters) {
      throw FileError("{}: 'clusters' holds {}, there are {}", name, t.cluster_ids.back(),
                      t.clusters);
    }
  }
  in.ExpectEnd();
  return t;
}

}  // namespace litecache::lab

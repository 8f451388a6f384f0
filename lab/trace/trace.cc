#include "lab/trace/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/mapped_file.h"

namespace litecache::kv {
namespace {

constexpr std::string_view kMagic = "LCTRACE1";
constexpr int64_t kVersion = 1;
constexpr float kCosineUnit = 127;

// Far above any recording; products of them fit 64 bits.
constexpr int64_t kMaxLayers = 1 << 10, kMaxHeads = 1 << 12, kMaxSteps = 1 << 12;
constexpr int64_t kMaxContext = 1 << 24, kMaxClusters = 1 << 16;

void Append(const void* data, size_t bytes, std::string* out) {
  out->append(static_cast<const char*>(data), bytes);
}

void AppendNumber(uint64_t value, std::string* out) {
  for (; value >= 128; value >>= 7) out->push_back(static_cast<char>(value | 128));
  out->push_back(static_cast<char>(value));
}

// Reads a file's bytes in order; missing bytes are an error that names the part.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& name) : left_(bytes), name_(name) {}

  std::span<const std::byte> Take(uint64_t bytes, const char* part) {
    if (bytes > left_.size()) {
      throw FileError("{}: ends within '{}': {} bytes are there, {} are needed", name_, part,
                      left_.size(), bytes);
    }
    const auto taken = left_.first(static_cast<size_t>(bytes));
    left_ = left_.subspan(static_cast<size_t>(bytes));
    return taken;
  }
  uint64_t TakeNumber(const char* part) {
    uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      const auto byte = static_cast<uint64_t>(Take(1, part)[0]);
      value |= (byte & 127) << shift;
      if (byte < 128) return value;
    }
    throw FileError("{}: '{}' holds a number that is too long", name_, part);
  }
  size_t left() const { return left_.size(); }

 private:
  std::span<const std::byte> left_;
  const std::string& name_;
};

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
  t->budget = fields.RequiredNumber("budget", 0, 1);
  t->clusters = fields.RequiredInt("clusters", 0, kMaxClusters);
  t->ranked = fields.RequiredInt("ranked", 0, t->clusters);
  t->model = fields.String("model").value_or("");
  t->fingerprint = fields.String("fingerprint").value_or("");
  t->text = fields.String("text").value_or("");
  t->text_hash = fields.String("text_hash").value_or("");
  t->retriever = fields.String("retriever").value_or("");
  t->created = fields.String("created").value_or("");
}

// The positions that are in exactly one of two ascending lists.
std::vector<int32_t> Differing(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> differing;
  std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(),
                                std::back_inserter(differing));
  return differing;
}

std::vector<int32_t> ReadRows(Reader* reader, const std::vector<int32_t>& before, int64_t context,
                              const std::string& name) {
  const uint64_t count = reader->TakeNumber("rows");
  if (count > static_cast<uint64_t>(context)) {
    throw FileError("{}: 'rows': {} positions differ from a step to the next, the text has {}",
                    name, count, context);
  }
  std::vector<int32_t> differing;
  differing.reserve(count);
  uint64_t next = 0;
  for (uint64_t i = 0; i < count; ++i) {
    next += reader->TakeNumber("rows");
    if (next >= static_cast<uint64_t>(context)) {
      throw FileError("{}: 'rows': position {} is not below the text's {} tokens", name, next,
                      context);
    }
    differing.push_back(static_cast<int32_t>(next++));
  }
  return Differing(before, differing);
}

}  // namespace

float Trace::Cosine(int64_t layer, int64_t q_head, int64_t a, int64_t b) const {
  if (a == b) return 1;
  if (a < b) std::swap(a, b);
  const size_t head = static_cast<size_t>(layer * q_heads + q_head) * pairs();
  return static_cast<float>(cosines[head + static_cast<size_t>(a * (a - 1) / 2 + b)]) / kCosineUnit;
}

std::string Trace::Describe() const {
  return fmt::format("{}, {} steps at {} tokens, text {}", model, steps, context, text_hash);
}

std::string Trace::Bytes() const {
  const auto heads = static_cast<size_t>(layers * kv_heads * steps);
  LC_CHECK(importance.size() == static_cast<size_t>(layers * q_heads));
  LC_CHECK(cosines.size() == static_cast<size_t>(layers * q_heads) * pairs());
  LC_CHECK(rows.size() == heads);
  LC_CHECK(cluster_ids.size() == heads * static_cast<size_t>(ranked));
  const nlohmann::ordered_json header = {
      {"version", kVersion},    {"layers", layers},           {"q_heads", q_heads},
      {"kv_heads", kv_heads},   {"context", context},         {"steps", steps},
      {"budget", budget},       {"clusters", clusters},       {"ranked", ranked},
      {"model", model},         {"fingerprint", fingerprint}, {"text", text},
      {"text_hash", text_hash}, {"retriever", retriever},     {"created", created},
  };
  const std::string json = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string bytes(kMagic);
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(json.size() >> (8 * i)));
  bytes += json;
  Append(importance.data(), importance.size() * sizeof(float), &bytes);
  Append(cosines.data(), cosines.size(), &bytes);
  const std::vector<int32_t> none;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool first = i % static_cast<size_t>(steps) == 0;
    const auto differing = Differing(first ? none : rows[i - 1], rows[i]);
    AppendNumber(differing.size(), &bytes);
    int32_t next = 0;
    for (const int32_t position : differing) {
      AppendNumber(static_cast<uint64_t>(position - next), &bytes);
      next = position + 1;
    }
  }
  Append(cluster_ids.data(), cluster_ids.size() * sizeof(uint16_t), &bytes);
  return bytes;
}

void Trace::Save(const std::filesystem::path& path) const {
  io::WriteFileAtomically(path, Bytes());
}

Trace Trace::Load(const std::filesystem::path& path) {
  return Parse(io::MappedFile(path).bytes(), path.string());
}

Trace Trace::Parse(std::span<const std::byte> file, const std::string& name) {
  Reader reader(file, name);
  if (file.size() < kMagic.size() ||
      std::memcmp(reader.Take(kMagic.size(), "magic").data(), kMagic.data(), kMagic.size()) != 0) {
    throw FileError(
        "{}: not a trace: it does not begin with '{}'; make one with "
        "`litecache-lab record`",
        name, kMagic);
  }
  uint64_t length = 0;
  const auto length_bytes = reader.Take(8, "header");
  for (size_t i = 0; i < 8; ++i) length |= static_cast<uint64_t>(length_bytes[i]) << (8 * i);
  const auto text = reader.Take(length, "header");
  Trace t;
  const std::string header_name = name + " (header)";
  ReadHeader(io::ParseJson({reinterpret_cast<const char*>(text.data()), text.size()}, header_name),
             header_name, &t);

  // Sizes are checked against the bytes that exist before memory is allocated.
  const auto q_heads = static_cast<uint64_t>(t.layers * t.q_heads);
  const auto importance = reader.Take(q_heads * sizeof(float), "importance");
  t.importance.resize(q_heads);
  std::memcpy(t.importance.data(), importance.data(), importance.size());
  for (const float value : t.importance) {
    if (!(value >= 0 && value <= 1)) {
      throw FileError("{}: 'importance' holds {}; its values lie between 0 and 1", name, value);
    }
  }
  const auto cosines = reader.Take(q_heads * t.pairs(), "cosines");
  t.cosines.resize(cosines.size());
  std::memcpy(t.cosines.data(), cosines.data(), cosines.size());
  const auto heads = static_cast<uint64_t>(t.layers * t.kv_heads);
  const uint64_t sets = heads * static_cast<uint64_t>(t.steps);
  if (sets > reader.left()) {  // each takes at least one byte
    throw FileError("{}: ends within 'rows': {} bytes are there, {} sets of rows are needed", name,
                    reader.left(), sets);
  }
  const std::vector<int32_t> none;
  for (uint64_t i = 0; i < sets; ++i) {
    const bool first = i % static_cast<uint64_t>(t.steps) == 0;
    t.rows.push_back(ReadRows(&reader, first ? none : t.rows.back(), t.context, name));
  }
  const auto ids =
      reader.Take(sets * static_cast<uint64_t>(t.ranked) * sizeof(uint16_t), "clusters");
  t.cluster_ids.resize(ids.size() / sizeof(uint16_t));
  if (!ids.empty()) std::memcpy(t.cluster_ids.data(), ids.data(), ids.size());
  for (const uint16_t id : t.cluster_ids) {
    if (id >= t.clusters) {
      throw FileError("{}: 'clusters' holds {}, there are {}", name, id, t.clusters);
    }
  }
  if (reader.left() > 0) {
    throw FileError("{}: {} bytes follow its end", name, reader.left());
  }
  return t;
}

}  // namespace litecache::kv

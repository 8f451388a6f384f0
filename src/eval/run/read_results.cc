// Results from lines of JSON.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "eval/run/result_fields.h"
#include "eval/run/results.h"
#include "io/file.h"
#include "io/json.h"

namespace litecache::eval {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Reads the fields of one line.
class Line {
 public:
  Line(const Json& json, std::string name) : json_(json), name_(std::move(name)) {
    if (!json.is_object()) throw FileError("{}: is not a JSON object", name_);
  }

  const Json& Field(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) throw FileError("{}: field '{}' is missing", name_, key);
    return *found;
  }
  std::string String(const char* key) const {
    const Json& value = Field(key);
    if (!value.is_string()) Fail(key, value, "a string");
    return value.get<std::string>();
  }
  double Number(const char* key) const {
    const Json& value = Field(key);
    if (!value.is_number()) Fail(key, value, "a number");
    return value.get<double>();
  }
  int64_t Int(const char* key, int64_t low = 0) const {
    const Json& value = Field(key);
    // Real counts and positions are far below the limit, and sums of a few of them still fit.
    constexpr int64_t kMost = int64_t{1} << 48;
    if (!value.is_number_integer() || value.get<int64_t>() < low || value.get<int64_t>() > kMost)
      Fail(key, value, "a whole number");
    return value.get<int64_t>();
  }
  bool Bool(const char* key) const {
    const Json& value = Field(key);
    if (!value.is_boolean()) Fail(key, value, "true or false");
    return value.get<bool>();
  }
  template <typename T>
  std::vector<T> Numbers(const char* key) const {
    std::vector<T> values;
    for (const Json& value : Array(key)) {
      if (!value.is_number()) Fail(key, value, "an array of numbers");
      values.push_back(value.get<T>());
    }
    return values;
  }
  std::vector<std::string> Strings(const char* key) const {
    std::vector<std::string> values;
    for (const Json& value : Array(key)) {
      if (!value.is_string()) Fail(key, value, "an array of strings");
      values.push_back(value.get<std::string>());
    }
    return values;
  }
  const Json& Array(const char* key) const {
    const Json& value = Field(key);
    if (!value.is_array()) Fail(key, value, "an array");
    return value;
  }
  // All zero where the line has none.
  DraftStats Drafts() const {
    DraftStats drafts;
    const auto found = json_.find("drafts");
    if (found == json_.end()) return drafts;
    if (!found->is_object()) Fail("drafts", *found, "an object");
    const Line line(*found, name_);
    for (const auto& [name, field] : kDraftFields) drafts.*field = line.Int(name);
    return drafts;
  }
  KvSums Kv() const {
    const Json& object = Field("kv");
    if (!object.is_object()) Fail("kv", object, "an object");
    KvSums kv;
    for (const auto& [name, field] : kKvFields) {
      const auto found = object.find(name);
      if (found == object.end()) continue;
      if (!found->is_number()) Fail(name, *found, "a number");
      kv.*field = found->get<double>();
    }
    return kv;
  }
  [[noreturn]] void Fail(const char* key, const Json& value, const char* expected) const {
    throw FileError("{}: field '{}' = {} is not {}", name_, key, io::Excerpt(value), expected);
  }

 private:
  const Json& json_;
  std::string name_;
};

RunInfo ParseRun(const Line& line) {
  RunInfo info;
  info.suite = line.String("suite");
  info.model = line.String("model");
  info.fingerprint = line.String("fingerprint");
  info.description = line.String("description");
  info.dtype = line.String("dtype");
  info.chat = line.Bool("chat");
  info.text = line.String("text");
  return info;
}

Prediction ParsePrediction(const Line& line) {
  Prediction p;
  p.key = line.String("key");
  p.configuration = line.String("configuration");
  p.task = line.String("task");
  p.length = line.Int("length");
  p.id = line.String("id");
  p.prediction = line.String("prediction");
  p.references = line.Strings("references");
  p.metric = line.String("metric");
  p.score = line.Number("score");
  p.prompt_tokens = line.Int("prompt_tokens");
  p.generated_tokens = line.Int("generated_tokens");
  p.finish = line.String("finish");
  p.queue_seconds = line.Number("queue_s");
  p.prefill_seconds = line.Number("prefill_s");
  p.decode_seconds = line.Number("decode_s");
  p.depths = line.Numbers<double>("depths");
  p.drafts = line.Drafts();
  p.kv = line.Kv();
  return p;
}

Window ParseWindow(const Line& line) {
  Window w;
  w.key = line.String("key");
  w.configuration = line.String("configuration");
  w.length = line.Int("length");
  w.index = line.Int("index");
  w.end = line.Int("end");
  w.first = line.Int("first");
  w.nll = line.Numbers<float>("nll");
  w.kl = line.Numbers<float>("kl");
  for (const char c : line.String("same_top")) w.same_top.push_back(c == '1');
  if (w.nll.empty()) line.Fail("nll", Json::array(), "at least one number");
  if (!w.kl.empty() && (w.kl.size() != w.nll.size() || w.same_top.size() != w.nll.size())) {
    line.Fail("kl", Json(w.kl.size()), "as long as 'nll' and 'same_top'");
  }
  for (const Json& item : line.Array("prompt")) {
    if (!item.is_array() || item.size() != 3 || !item[0].is_number_integer() ||
        !item[1].is_number_integer() || !item[2].is_number()) {
      line.Fail("prompt", item, "[end, tokens, nll]");
    }
    w.prompt.push_back({item[0].get<int64_t>(), item[1].get<int64_t>(), item[2].get<double>()});
  }
  w.seconds = line.Number("seconds");
  w.kv = line.Kv();
  return w;
}

HeadTable ParseHeads(const Line& line) {
  HeadTable table;
  table.configuration = line.String("configuration");
  table.length = line.Int("length");
  table.layers = line.Int("layers", 1);
  table.kv_heads = line.Int("kv_heads", 1);
  const auto count = line.Array("lookups").size();
  if (table.layers > 1 << 20 || table.kv_heads > 1 << 20 ||
      count != static_cast<size_t>(table.layers * table.kv_heads)) {
    line.Fail("lookups", Json(count), "layers * kv_heads numbers");
  }
  table.heads.resize(count);
  const auto read = [&](const char* name, const auto& assign) {
    const auto values = line.Numbers<double>(name);
    if (values.size() != count) line.Fail(name, Json(values.size()), "as long as 'lookups'");
    for (size_t i = 0; i < count; ++i) assign(table.heads[i], values[i]);
  };
  for (const auto& [name, field] : kHeadCounts) {
    read(name, [field = field](kv::HeadCounters& head, double value) {
      head.*field = value > 0 ? static_cast<uint64_t>(std::min(value, 1e18)) : 0;
    });
  }
  for (const auto& [name, field] : kHeadSums) {
    read(name, [field = field](kv::HeadCounters& head, double value) { head.*field = value; });
  }
  return table;
}

void ParseLine(const Json& json, const std::string& name, Results* results) {
  const Line line(json, name);
  const std::string type = line.String("type");
  if (type == "run") {
    results->runs.push_back(ParseRun(line));
  } else if (type == "configuration") {
    const Json& options = line.Field("options");
    if (!options.is_object()) line.Fail("options", options, "an object");
    results->configurations.emplace_back(line.String("name"), OrderedJson(options));
  } else if (type == "prediction") {
    results->predictions.push_back(ParsePrediction(line));
  } else if (type == "window") {
    results->windows.push_back(ParseWindow(line));
  } else if (type == "heads") {
    results->heads.push_back(ParseHeads(line));
  } else {
    throw FileError("{}: field 'type' = \"{}\" is not a line type of `litecache eval run`", name,
                    type);
  }
}

}  // namespace

Results ParseResults(const std::string& text, const std::string& name, size_t* complete_bytes) {
  Results results;
  size_t begin = 0;
  for (int64_t number = 1; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}: line {}", name, number);
    ParseLine(io::ParseJson(line, where), where, &results);
  }
  if (complete_bytes != nullptr) *complete_bytes = std::min(begin, text.size());
  return results;
}

Results ReadResults(const std::filesystem::path& path) {
  return ParseResults(io::ReadTextFile(path), path.string(), nullptr);
}

}  // namespace litecache::eval

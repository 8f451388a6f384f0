#include "io/json_parser.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/work_limit.h"

namespace litecache::io {
namespace {

// A token in a message may be as long as the text, so messages are cut to this length.
constexpr size_t kLongestReason = 200;

// Builds a value from nlohmann's events. A container is built at once when it ends, because a
// vector of ordered_json's fields copies all of them, recursively, each time it grows.
template <typename Json>
class Builder {
 public:
  Builder(JsonLimits* limits, DuplicateKeys duplicates)
      : limits_(*limits), duplicates_(duplicates) {}

  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(int64_t value) { return Add(value); }
  bool number_unsigned(uint64_t value) { return Add(value); }
  bool number_float(double value, const std::string&) { return Add(value); }
  bool string(std::string& value) { return Add(std::move(value)); }
  bool binary(typename Json::binary_t&) { return false; }
  bool start_object(size_t) { return Open(true); }
  bool start_array(size_t) { return Open(false); }

  bool key(std::string& name) {
    Frame& object = open_.back();
    if (object.fields.size() >= limits_.keys) {
      Refuse(fmt::format("an object has more than {} fields", limits_.keys));
    }
    object.fields.emplace_back(std::move(name), nullptr);
    return true;
  }

  bool end_array() {
    typename Json::array_t items = std::move(open_.back().items);
    open_.pop_back();
    items.shrink_to_fit();
    return Put(std::move(items));
  }

  bool end_object() {
    Fields fields = std::move(open_.back().fields);
    open_.pop_back();
    return Put(MakeObject(std::move(fields)));
  }

  bool parse_error(size_t offset, const std::string&, const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: <reason>"
    std::string_view reason = error.what();
    const size_t place = reason.find("parse error at line");
    const size_t begin =
        place == std::string_view::npos ? reason.find("] ") : reason.find(": ", place);
    if (begin != std::string_view::npos) reason.remove_prefix(begin + 2);
    std::string text(reason.substr(0, kLongestReason));
    if (text.size() < reason.size()) text += "...";
    throw JsonError(text, false, offset > 0 ? offset - 1 : 0);
  }

  Json Take() { return std::move(root_); }

 private:
  using Fields = std::vector<std::pair<std::string, Json>>;
  struct Frame {
    bool is_object;
    typename Json::array_t items;
    Fields fields;  // the last field's value is missing or being built
  };

  [[noreturn]] void Refuse(const std::string& reason) { throw JsonError(reason, true); }

  void Count() {
    CheckWork();
    if (limits_.values == 0) Refuse("it holds too many values");
    --limits_.values;
  }

  bool Add(Json value) {
    Count();
    return Put(std::move(value));
  }

  bool Put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().fields.back().second = std::move(value);
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  bool Open(bool is_object) {
    Count();
    if (open_.size() >= static_cast<size_t>(limits_.depth)) {
      Refuse(fmt::format("it nests deeper than {} levels", limits_.depth));
    }
    open_.push_back({is_object, {}, {}});
    return true;
  }

  Json MakeObject(Fields fields) {
    // Sorts equal names next to each other, in the order of the text.
    std::vector<uint32_t> order(fields.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      const int names = fields[a].first.compare(fields[b].first);
      return names != 0 ? names < 0 : a < b;
    });
    size_t unique = order.empty() ? 0 : 1;
    for (size_t i = 1; i < order.size(); ++i) {
      if (fields[order[i]].first != fields[order[unique - 1]].first) {
        order[unique++] = order[i];
        continue;
      }
      if (duplicates_ == DuplicateKeys::kReject) {
        throw JsonError(fmt::format("the name '{}' occurs twice",
                                    fields[order[i]].first.substr(0, kLongestReason)),
                        false);
      }
      fields[order[unique - 1]].second = std::move(fields[order[i]].second);
    }
    order.resize(unique);
    Json object = Json::object();
    auto& made = object.template get_ref<typename Json::object_t&>();
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      std::sort(order.begin(), order.end());
      made.reserve(unique);
      for (const uint32_t i : order) {
        made.emplace_back(std::move(fields[i].first), std::move(fields[i].second));
      }
    } else {
      for (const uint32_t i : order) {
        made.emplace_hint(made.end(), std::move(fields[i].first), std::move(fields[i].second));
      }
    }
    return object;
  }

  JsonLimits& limits_;
  const DuplicateKeys duplicates_;
  std::vector<Frame> open_;
  Json root_;
};

}  // namespace

template <typename Json>
Json ParseLimitedJson(std::string_view text, JsonLimits* limits, DuplicateKeys duplicates) {
  Builder<Json> builder(limits, duplicates);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

template nlohmann::json ParseLimitedJson(std::string_view, JsonLimits*, DuplicateKeys);
template nlohmann::ordered_json ParseLimitedJson(std::string_view, JsonLimits*, DuplicateKeys);

}  // namespace litecache::io

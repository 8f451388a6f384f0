#include "tokenizer/jinja/json_values.h"

#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/unicode.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

namespace {

using nlohmann::ordered_json;

MarkedString InputString(const std::string& text, bool input) {
  if (!IsValidUtf8(text)) {
    throw InvalidArgument("chat template: a string of the messages is not valid UTF-8");
  }
  return MarkedString(text, input);
}

Value Convert(Runtime& rt, const ordered_json& json, bool input, int depth) {
  if (depth > rt.limits().value_depth) {
    throw InvalidArgument("chat template: messages nest more than {} levels deep",
                          rt.limits().value_depth);
  }
  switch (json.type()) {
    case ordered_json::value_t::null:
    case ordered_json::value_t::discarded:
      return Value::None();
    case ordered_json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case ordered_json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case ordered_json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) {
        throw InvalidArgument("chat template: the integer {} of the messages is over 64 bits",
                              number);
      }
      return Value::Int(static_cast<int64_t>(number));
    }
    case ordered_json::value_t::number_float:
      return Value::Float(json.get<double>());
    case ordered_json::value_t::string:
      return rt.MakeString(InputString(json.get_ref<const std::string&>(), input));
    case ordered_json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(Convert(rt, item, input, depth + 1));
      return rt.MakeList(std::move(items));
    }
    case ordered_json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, item] : json.items()) {
        dict->Set(rt.MakeString(InputString(key, input)), Convert(rt, item, input, depth + 1));
      }
      return rt.MakeDict(std::move(dict));
    }
    case ordered_json::value_t::binary:
      break;
  }
  throw InvalidArgument("chat template: binary values in messages are not supported");
}

class Writer {
 public:
  Writer(Runtime& rt, const JsonStyle& style) : rt_(rt), style_(style) {}

  void Write(const Value& value, int level) {
    rt_.Step();
    Runtime::DepthGuard guard(&rt_);
    switch (value.type()) {
      case Type::kNone:
        out_.Append("null");
        return;
      case Type::kBool:
        out_.Append(value.bool_value() ? "true" : "false");
        return;
      case Type::kInt:
        out_.Append(fmt::format("{}", value.int_value()));
        return;
      case Type::kFloat:
        out_.Append(FloatText(value.number()));
        return;
      case Type::kString:
        WriteString(value.string());
        return;
      case Type::kList:
      case Type::kTuple:
        WriteList(value.items(), level);
        return;
      case Type::kDict:
        WriteDict(value.As<Dict>(), level);
        return;
      default:
        rt_.Fail("object of type {} is not JSON serializable", TypeName(value));
    }
  }

  MarkedString Take() { return std::move(out_); }

 private:
  static std::string FloatText(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return FormatFloat(value);
  }

  void WriteString(const MarkedString& string) {
    const std::string& text = string.text();
    out_.Append('"');
    for (size_t position = 0; position < text.size();) {
      const size_t begin = position;
      const char32_t c = NextCodePoint(text, &position);
      const bool input = string.IsInput(begin);
      constexpr std::string_view kFrom = "\"\\\n\r\t\f\b";
      constexpr std::string_view kTo = "\"\\nrtfb";
      const size_t simple = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
      if (simple != std::string_view::npos) {
        out_.Append(std::string{'\\', kTo[simple]}, input);
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F && c < 0x10000)) {
        out_.Append(fmt::format("\\u{:04x}", static_cast<uint32_t>(c)), input);
      } else if (style_.ensure_ascii && c >= 0x10000) {
        const uint32_t rest = static_cast<uint32_t>(c) - 0x10000;
        out_.Append(
            fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF)),
            input);
      } else {
        out_.Append(string, begin, position);
      }
    }
    out_.Append('"');
    CheckSize();
  }

  // A shared value is written many times, so the total size is checked while writing.
  void CheckSize() const {
    if (out_.size() > static_cast<size_t>(rt_.limits().string_bytes)) rt_.ChargeBytes(out_.size());
  }

  void NewLine(int level) {
    if (!style_.indent.has_value()) return;
    CheckSize();
    out_.Append('\n');
    for (int i = 0; i < level; ++i) out_.Append(*style_.indent);
  }

  void WriteList(const std::vector<Value>& items, int level) {
    if (items.empty()) {
      out_.Append("[]");
      return;
    }
    out_.Append('[');
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.Append(style_.item_separator);
      NewLine(level + 1);
      Write(items[i], level + 1);
    }
    NewLine(level);
    out_.Append(']');
  }

  void WriteKey(const Value& key) {
    switch (key.type()) {
      case Type::kString:
        WriteString(key.string());
        return;
      case Type::kNone:
        out_.Append("\"null\"");
        return;
      case Type::kBool:
        out_.Append(key.bool_value() ? "\"true\"" : "\"false\"");
        return;
      case Type::kInt:
        out_.Append(fmt::format("\"{}\"", key.int_value()));
        return;
      case Type::kFloat:
        out_.Append("\"" + FloatText(key.number()) + "\"");
        return;
      default:
        rt_.Fail("keys must be str, int, float, bool or None, not {}", TypeName(key));
    }
  }

  void WriteDict(const Dict& dict, int level) {
    if (dict.size() == 0) {
      out_.Append("{}");
      return;
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return Less(rt_, a->first, b->first); });
    }
    out_.Append('{');
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.Append(style_.item_separator);
      NewLine(level + 1);
      WriteKey(entries[i]->first);
      out_.Append(style_.key_separator);
      Write(entries[i]->second, level + 1);
    }
    NewLine(level);
    out_.Append('}');
  }

  Runtime& rt_;
  const JsonStyle& style_;
  MarkedString out_;
};

}  // namespace

Value FromJson(Runtime& rt, const nlohmann::ordered_json& json, bool input) {
  return Convert(rt, json, input, 0);
}

MarkedString ToJson(Runtime& rt, const Value& value, const JsonStyle& style) {
  Writer writer(rt, style);
  writer.Write(value, 0);
  return writer.Take();
}

}  // namespace litecache::tokenizer::jinja

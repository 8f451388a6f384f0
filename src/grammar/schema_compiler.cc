#include "grammar/schema_compiler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/error.h"
#include "grammar/decimal.h"
#include "grammar/pattern.h"

namespace litecache::grammar {
namespace {

constexpr size_t kMaxRules = 20'000;
// Text of all subschemas: this, and so many times the schema's own. Circles of combinations grow
// until they meet it.
constexpr size_t kRuleBytes = size_t{256} << 10;
constexpr size_t kRuleBytesGrowth = 16;
constexpr int kIndentation = 24;  // blanks of a new line
constexpr int kTabs = 6;

// Everything a schema may say. What is not here is refused.
constexpr std::array<std::string_view, 26> kKeywords = {"type",
                                                        "enum",
                                                        "const",
                                                        "properties",
                                                        "required",
                                                        "additionalProperties",
                                                        "minProperties",
                                                        "maxProperties",
                                                        "items",
                                                        "prefixItems",
                                                        "minItems",
                                                        "maxItems",
                                                        "minLength",
                                                        "maxLength",
                                                        "pattern",
                                                        "format",
                                                        "minimum",
                                                        "maximum",
                                                        "exclusiveMinimum",
                                                        "exclusiveMaximum",
                                                        "multipleOf",
                                                        "anyOf",
                                                        "oneOf",
                                                        "allOf",
                                                        "$ref",
                                                        "uniqueItems"};

// Formats that say how a text looks; others are annotations, as JSON Schema has it by default.
const std::map<std::string, std::string, std::less<>>& Formats() {
  constexpr const char* kDate =
      "[0-9]{4}-(0[13578]-(0[1-9]|[12][0-9]|3[01])|1[02]-(0[1-9]|[12][0-9]|3[01])|0[469]-(0[1-9]|["
      "12]"
      "[0-9]|30)|11-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
  constexpr const char* kTime =
      "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]"
      ")";
  static const std::map<std::string, std::string, std::less<>> kFormats = {
      {"date", fmt::format("^{}$", kDate)},
      {"time", fmt::format("^{}$", kTime)},
      {"date-time", fmt::format("^{}T{}$", kDate, kTime)},
      {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
      {"ipv4",
       "^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}"
       "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$"},
      {"email",
       "^[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30}){0,4}@[A-Za-z0-9]([A-Za-z0-9-]{0,30}"
       "[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?){1,4}$"}};
  return kFormats;
}

std::string Text(const Json& value) { return value.dump(); }

void CheckKeywords(const Subschema& s) {
  for (const auto& [keyword, value] : s.schema.items()) {
    if (IsAnnotation(keyword)) continue;
    if (std::find(kKeywords.begin(), kKeywords.end(), keyword) == kKeywords.end()) {
      throw Unsupported("{}: the keyword '{}' is not supported", s.path, keyword);
    }
  }
}

// A count such as minItems.
uint32_t Count(const Subschema& s, const char* keyword, uint32_t fallback) {
  const auto found = s.schema.find(keyword);
  if (found == s.schema.end()) return fallback;
  const bool whole = found->is_number() && found->get<double>() == std::floor(found->get<double>());
  if (!whole || found->get<double>() < 0) {
    throw InvalidArgument("{}/{}: {} is no count", s.path, keyword, Text(*found));
  }
  if (found->get<double>() >= AutomatonBuilder::kMaxStates) {
    if (std::string_view(keyword).starts_with("max")) return kUnlimited;
    throw InvalidArgument("{}/{}: {} is too large", s.path, keyword, Text(*found));
  }
  return static_cast<uint32_t>(found->get<double>());
}

const Json& Expect(const Subschema& s, const char* keyword, Json::value_t type, const char* what) {
  const Json& value = s.schema[keyword];
  if (value.type() != type) throw InvalidArgument("{}/{}: {} is expected", s.path, keyword, what);
  return value;
}

std::string Escaped(std::string_view name) {  // in a JSON pointer
  std::string result;
  for (const char c : name) {
    if (c == '~') {
      result += "~0";
    } else if (c == '/') {
      result += "~1";
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

StateId SchemaCompiler::Compile(const Json& root) {
  const SchemaDocument document(root);
  document_ = &document;
  rules_.clear();  // references mean this document's
  rule_bytes_left_ = kRuleBytes + kRuleBytesGrowth * root.dump().size();
  const StateId start = Rule({root, "#"});
  while (!pending_.empty()) {
    const Pending rule = std::move(pending_.front());
    pending_.pop_front();
    Write(rule);
  }
  document_ = nullptr;
  return start;
}

StateId SchemaCompiler::Rule(Subschema subschema) {
  // A reference alone is what it refers to.
  std::set<std::string> seen;
  while (subschema.schema.is_object() && subschema.schema.contains("$ref")) {
    subschema = document_->Flatten(subschema);
    if (!subschema.schema.is_object() || !subschema.schema.contains("$ref")) break;
    const auto reference = Expect(subschema, "$ref", Json::value_t::string, "a text");
    if (!seen.insert(reference.get<std::string>()).second) {
      throw InvalidArgument("{}: its references go around in a circle", subschema.path);
    }
    subschema = document_->Resolve(reference.get<std::string>(), subschema.path);
  }
  std::string key = subschema.schema.dump();
  const auto found = rules_.find(key);
  if (found != rules_.end()) return found->second;
  if (rules_.size() >= kMaxRules || key.size() > rule_bytes_left_) {
    throw InvalidArgument(
        "the schema is too large: its references and combinations never end, or give too many "
        "parts");
  }
  rule_bytes_left_ -= key.size();
  const StateId start = builder_.Add();
  const StateId end = builder_.AddEnd();
  rules_.emplace(std::move(key), start);
  pending_.push_back({std::move(subschema), start, end});
  return start;
}

void SchemaCompiler::Write(const Pending& rule) {
  const Subschema s = document_->Flatten(rule.subschema);
  const Json& schema = s.schema;
  if (schema == false) return;  // nothing
  if (schema != true && !schema.is_object()) {
    throw InvalidArgument("{}: a schema is an object, true or false", s.path);
  }
  if (schema.is_object()) {
    CheckKeywords(s);
    if (schema.contains("$ref")) return builder_.Call(rule.start, Rule(s), rule.end);
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (schema.contains(keyword)) return WriteChoices(s, keyword, rule.start, rule.end);
    }
    if (schema.contains("const") || schema.contains("enum")) {
      return WriteConstants(s, rule.start, rule.end);
    }
  }
  auto types = TypesOf(s);
  for (const std::string& type : types) {
    // Integers are numbers: they need not be written twice.
    const bool covered =
        type == "integer" && std::find(types.begin(), types.end(), "number") != types.end();
    if (!covered) WriteType(s, type, rule.start, rule.end);
  }
}

void SchemaCompiler::WriteChoices(const Subschema& s, const char* keyword, StateId from,
                                  StateId to) {
  const Json& choices = Expect(s, keyword, Json::value_t::array, "an array");
  if (choices.empty()) throw InvalidArgument("{}/{}: it is empty", s.path, keyword);
  Json rest = Json::object();  // what else is said
  for (const auto& [key, value] : s.schema.items()) {
    if (key != keyword && !IsAnnotation(key)) rest[key] = value;
  }
  std::vector<Subschema> parts;
  for (size_t i = 0; i < choices.size(); ++i) {
    parts.push_back({choices[i], fmt::format("{}/{}/{}", s.path, keyword, i)});
  }
  if (std::string_view(keyword) == "oneOf") {
    for (size_t i = 0; i < parts.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (document_->Disjoint(parts[i], parts[j])) continue;
        throw Unsupported(
            "{}/oneOf: a value may match both {} and {}; use anyOf, or tell them apart by type, or "
            "by a required property with different constants",
            s.path, j, i);
      }
    }
  }
  for (Subschema& part : parts) {
    // The other fields hold for every choice.
    if (!rest.empty()) part.schema = Json{{"allOf", Json::array({rest, part.schema})}};
    builder_.Call(from, Rule(std::move(part)), to);
  }
}

void SchemaCompiler::WriteConstants(const Subschema& s, StateId from, StateId to) {
  for (const auto& [keyword, value] : s.schema.items()) {
    if (IsAnnotation(keyword) || keyword == "type" || keyword == "const" || keyword == "enum") {
      continue;
    }
    throw Unsupported("{}: '{}' beside const or enum is not supported", s.path, keyword);
  }
  Json values = Json::array();
  if (s.schema.contains("enum")) values = Expect(s, "enum", Json::value_t::array, "an array");
  if (s.schema.contains("const")) {
    const Json& value = s.schema["const"];
    const bool listed = !s.schema.contains("enum") ||
                        std::find(values.begin(), values.end(), value) != values.end();
    values = listed ? Json::array({value}) : Json::array();
  }
  const auto types = TypesOf(s);
  std::set<std::string> written;
  for (const Json& value : values) {
    const std::string type = TypeOfValue(value);
    const auto is = [&](const char* name) {
      return std::find(types.begin(), types.end(), name) != types.end();
    };
    if (!is(type.c_str()) && !(type == "integer" && is("number"))) continue;
    if (written.insert(value.dump()).second) builder_.Literal(from, value.dump(), to);
  }
}

void SchemaCompiler::WriteType(const Subschema& s, const std::string& type, StateId from,
                               StateId to) {
  if (type == "null") return builder_.Literal(from, "null", to);
  if (type == "boolean") {
    builder_.Literal(from, "true", to);
    return builder_.Literal(from, "false", to);
  }
  if (type == "string") return WriteString(s, from, to);
  if (type == "array") return WriteArray(s, from, to);
  if (type == "object") return WriteObject(s, from, to);
  WriteNumberOf(s, type == "integer", from, to);
}

void SchemaCompiler::WriteString(const Subschema& s, StateId from, StateId to) {
  if (!s.schema.is_object()) return WritePlainString(0, kUnlimited, from, to);
  const uint32_t min = Count(s, "minLength", 0), max = Count(s, "maxLength", kUnlimited);
  std::string pattern, keyword;
  if (s.schema.contains("format")) {
    const Json& format = Expect(s, "format", Json::value_t::string, "a text");
    const auto found = Formats().find(format.get<std::string>());
    if (found != Formats().end()) {
      pattern = found->second;
      keyword = "format";
    }
  }
  if (s.schema.contains("pattern")) {
    if (!pattern.empty()) {
      throw Unsupported("{}: 'pattern' beside 'format' = {} is not supported", s.path,
                        Text(s.schema["format"]));
    }
    pattern = Expect(s, "pattern", Json::value_t::string, "a text").get<std::string>();
    keyword = "pattern";
  }
  if (keyword.empty()) return WritePlainString(min, max, from, to);
  const StateId open = builder_.Literal(from, "\"");
  const StateId close = builder_.Add();
  try {
    characters_.All(open, ParsePattern(pattern), min, max, close);
  } catch (const Unsupported& error) {
    throw Unsupported("{}/{}: {}", s.path, keyword, error.what());
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("{}/{}: {}", s.path, keyword, error.what());
  }
  builder_.Byte(close, '"', to);
}

void SchemaCompiler::WritePlainString(uint32_t min, uint32_t max, StateId from, StateId to) {
  if (min > max) return;
  // Escapes and characters of several bytes. \u escapes of UTF-16 surrogates come in pairs.
  StateId& rest = shared_["character"];
  if (rest == 0) {
    rest = builder_.Add();
    const StateId end = builder_.AddEnd();
    const StateId escape = builder_.Literal(rest, "\\");
    for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) builder_.Byte(escape, c, end);
    const auto hex = [&](StateId before, std::string_view digits, StateId after) {
      for (const char c : digits) builder_.Byte(before, c, after);
    };
    constexpr std::string_view kHex = "0123456789abcdefABCDEF";
    const auto any = [&](StateId before, int count, StateId after) {
      for (; count > 1; --count) {
        const StateId next = builder_.Add();
        hex(before, kHex, next);
        before = next;
      }
      hex(before, kHex, after);
    };
    const StateId u = builder_.Literal(escape, "u");
    const StateId three = builder_.Add(), d = builder_.Add(), two = builder_.Add();
    hex(u, "0123456789abcefABCEF", three);
    any(three, 3, end);
    hex(u, "dD", d);
    hex(d, "01234567", two);
    any(two, 2, end);
    const StateId high = builder_.Add(), low = builder_.Add(), low_two = builder_.Add();
    hex(d, "89abAB", high);
    const StateId second = builder_.Add();
    any(high, 2, second);
    const StateId low_u = builder_.Literal(second, "\\u");
    hex(low_u, "dD", low);
    hex(low, "cdefCDEF", low_two);
    any(low_two, 2, end);
    WriteUtf8(&builder_, rest, 0x80, 0xD7FF, end);
    WriteUtf8(&builder_, rest, 0xE000, 0x10FFFF, end);
  }
  const auto one = [&](StateId before, StateId after) {
    builder_.Bytes(before, 0x20, 0x21, after);  // all but " and backslash
    builder_.Bytes(before, 0x23, 0x5B, after);
    builder_.Bytes(before, 0x5D, 0x7F, after);
    builder_.Call(before, rest, after);
  };
  const uint32_t counted = max == kUnlimited ? min : max;
  StateId state = builder_.Literal(from, "\"");
  for (uint32_t i = 0;; ++i) {
    if (i >= min) builder_.Byte(state, '"', to);
    if (i == counted) break;
    builder_.SetPlain(state, max == kUnlimited ? kUnlimited : max - i);
    const StateId next = builder_.Add();
    one(state, next);
    state = next;
  }
  if (max == kUnlimited) {
    builder_.SetPlain(state, kUnlimited);
    one(state, state);
  }
}

void SchemaCompiler::WriteNumberOf(const Subschema& s, bool integer, StateId from, StateId to) {
  NumberBounds bounds;
  bounds.fraction_digits = integer ? 0 : kFractionDigits;
  if (s.schema.is_object()) {
    const auto read = [&](const char* keyword, bool low, bool excluded) {
      const auto found = s.schema.find(keyword);
      if (found == s.schema.end()) return;
      if (!found->is_number()) {
        throw InvalidArgument("{}/{}: {} is no number", s.path, keyword, Text(*found));
      }
      const auto value = ParseDecimal(found->dump());
      if (!value) {
        // Beyond all numbers that are written.
        if (std::abs(found->get<double>()) > 1 && (found->get<double>() < 0) == low) return;
        throw Unsupported("{}/{}: {} has too many digits", s.path, keyword, Text(*found));
      }
      auto& bound = low ? bounds.low : bounds.high;
      auto& is_excluded = low ? bounds.low_excluded : bounds.high_excluded;
      if (bound) {
        // Of minimum and exclusiveMinimum the stricter one holds.
        const char* other = low ? "minimum" : "maximum";
        const double mine = found->get<double>(), before = s.schema[other].get<double>();
        if (low ? mine < before : mine > before) return;
      }
      bound = *value;
      is_excluded = excluded;
    };
    read("minimum", true, false);
    read("exclusiveMinimum", true, true);
    read("maximum", false, false);
    read("exclusiveMaximum", false, true);
    if (const auto found = s.schema.find("multipleOf"); found != s.schema.end()) {
      // Powers of ten are numbers of digits behind the point.
      const auto step = found->is_number() ? ParseDecimal(found->dump()) : std::nullopt;
      if (step && !step->negative && step->whole == "1" && step->fraction.empty()) {
        bounds.fraction_digits = 0;
      } else if (step && !step->negative && step->whole == "0" && !step->fraction.empty() &&
                 step->fraction.find_first_not_of('0') == step->fraction.size() - 1 &&
                 step->fraction.back() == '1') {
        bounds.fraction_digits =
            std::min(bounds.fraction_digits, static_cast<int>(step->fraction.size()));
      } else {
        throw Unsupported("{}/multipleOf: {} is not supported: 1, 0.1, 0.01 and so on are", s.path,
                          Text(*found));
      }
      return WriteNumber(&builder_, from, bounds, to);
    }
  }
  if (bounds.bounded()) return WriteNumber(&builder_, from, bounds, to);

  StateId& rule = shared_[integer ? "integer" : "number"];
  if (rule == 0) {
    rule = builder_.Add();
    const StateId end = builder_.AddEnd();
    const StateId whole = builder_.Add();  // behind the whole digits
    const StateId minus = builder_.Literal(rule, "-");
    builder_.Byte(rule, '0', whole);
    if (!integer) builder_.Byte(minus, '0', whole);
    const auto digits = [&](StateId before, char first, int most, StateId after) {
      for (int i = 0; i < most; ++i) {
        const StateId next = builder_.Add();
        builder_.Bytes(before, static_cast<uint8_t>(i == 0 ? first : '0'), '9', next);
        builder_.Jump(next, after);
        before = next;
      }
    };
    digits(rule, '1', kWholeDigits, whole);
    digits(minus, '1', kWholeDigits, whole);
    builder_.Jump(whole, end);
    if (!integer) {
      const StateId fraction = builder_.Add();  // behind the digits after the point
      builder_.Jump(whole, fraction);
      digits(builder_.Literal(whole, "."), '0', kFractionDigits, fraction);
      const StateId e = builder_.Add(), exponent = builder_.Add();
      builder_.Byte(fraction, 'e', e);
      builder_.Byte(fraction, 'E', e);
      builder_.Byte(e, '+', exponent);
      builder_.Byte(e, '-', exponent);
      builder_.Jump(e, exponent);
      digits(exponent, '0', 2, end);
      builder_.Jump(fraction, end);
    }
  }
  builder_.Call(from, rule, to);
}

void SchemaCompiler::WriteArray(const Subschema& s, StateId from, StateId to) {
  std::vector<StateId> prefix;
  std::optional<StateId> items;
  uint32_t min = 0, max = kUnlimited;
  if (s.schema.is_object()) {
    min = Count(s, "minItems", 0);
    max = Count(s, "maxItems", kUnlimited);
    if (s.schema.contains("uniqueItems") && s.schema["uniqueItems"] != false && max > 1) {
      throw Unsupported("{}: the keyword 'uniqueItems' is not supported", s.path);
    }
    if (s.schema.contains("prefixItems")) {
      const Json& list = Expect(s, "prefixItems", Json::value_t::array, "an array");
      for (size_t i = 0; i < list.size(); ++i) {
        prefix.push_back(Rule({list[i], fmt::format("{}/prefixItems/{}", s.path, i)}));
      }
    }
    if (s.schema.contains("items")) {
      const Json& item = s.schema["items"];
      if (item.is_array()) {
        throw Unsupported("{}/items: a list of schemas is 'prefixItems'", s.path);
      }
      if (item != false) items = Rule({item, s.path + "/items"});
    } else if (prefix.empty() || min > prefix.size()) {
      items = Rule({true, s.path + "/items"});
    }
  } else {
    items = Rule({true, s.path + "/items"});
  }
  if (!items) max = std::min(max, static_cast<uint32_t>(prefix.size()));
  if (min > max) return;

  const auto fixed = static_cast<uint32_t>(prefix.size());
  const uint32_t counted = max == kUnlimited ? std::max({min, fixed, 1u}) : max;
  StateId state = builder_.Literal(from, "[");  // behind i items
  for (uint32_t i = 0;; ++i) {
    if (i >= min) {
      // An empty array has no space inside.
      if (i == 0) {
        builder_.Byte(state, ']', to);
      } else {
        const StateId close = builder_.Add();
        builder_.Call(state, Space(), close);
        builder_.Byte(close, ']', to);
      }
    }
    if (i == counted && max != kUnlimited) break;
    const StateId comma = i == 0 ? state : builder_.Literal(state, ",");
    const StateId item = builder_.Add();
    builder_.Call(comma, Space(), item);
    if (i == counted) {
      builder_.Call(item, *items, state);
      break;
    }
    const StateId next = builder_.Add();
    builder_.Call(item, i < fixed ? prefix[i] : *items, next);
    state = next;
  }
}

void SchemaCompiler::WriteMember(StateId from, StateId key, StateId value, StateId to) {
  const StateId colon = builder_.Add(), space = builder_.Add(), begin = builder_.Add();
  builder_.Call(from, key, colon);
  builder_.Byte(colon, ':', space);
  builder_.Call(space, SpaceAfterColon(), begin);
  builder_.Call(begin, value, to);
}

void SchemaCompiler::WriteObject(const Subschema& s, StateId from, StateId to) {
  if (!s.schema.is_object()) return WriteMap(s, true, from, to);
  Json properties = Json::object();
  if (s.schema.contains("properties")) {
    properties = Expect(s, "properties", Json::value_t::object, "an object");
  }
  // Properties that a schema does not name are left out where it names some and does not speak of
  // others.
  const bool named = s.schema.contains("properties");
  Json more = named ? Json(false) : Json(true);
  if (s.schema.contains("additionalProperties")) more = s.schema["additionalProperties"];
  std::set<std::string> required;
  if (s.schema.contains("required")) {
    for (const Json& name : Expect(s, "required", Json::value_t::array, "an array")) {
      if (!name.is_string()) throw InvalidArgument("{}/required: names are texts", s.path);
      required.insert(name.get<std::string>());
      // Required without a schema of its own: it has that of further properties.
      if (!properties.contains(name.get<std::string>())) {
        const bool silent = !s.schema.contains("additionalProperties");
        properties[name.get<std::string>()] = silent ? Json(true) : more;
      }
    }
  }
  if (properties.empty()) return WriteMap(s, more, from, to);
  for (const char* keyword : {"minProperties", "maxProperties"}) {
    if (!s.schema.contains(keyword)) continue;
    const uint32_t count = Count(s, keyword, 0);
    const bool met = std::string_view(keyword) == "minProperties"
                         ? count <= required.size()
                         : more == false && count >= properties.size();
    if (!met) throw Unsupported("{}: '{}' beside 'properties' is not supported", s.path, keyword);
  }

  // Before member i: without (first) and with (next) a member behind it, which needs a comma.
  StateId first = builder_.Literal(from, "{");
  StateId next = builder_.Add();
  StateId comma = builder_.Add();  // behind the comma, where member i or a later one may begin
  const StateId open_space = builder_.Add();
  const StateId open = first;
  builder_.Call(first, Space(), open_space);
  first = open_space;
  const auto behind_comma = [&](StateId state, StateId target) {
    const StateId space = builder_.Literal(state, ",");
    builder_.Call(space, Space(), target);
  };
  behind_comma(next, comma);
  bool may_be_empty = true, begun = false;
  for (const auto& [name, schema] : properties.items()) {
    const StateId member = builder_.Add();
    const StateId after = builder_.Add(), after_comma = builder_.Add();
    const StateId key = builder_.Add(), key_end = builder_.AddEnd();
    builder_.Literal(key, Json(name).dump(), key_end);
    WriteMember(member, key, Rule({schema, fmt::format("{}/properties/{}", s.path, Escaped(name))}),
                after);
    builder_.Jump(first, member);
    if (begun) builder_.Jump(comma, member);
    behind_comma(after, after_comma);
    const StateId first_after = builder_.Add();
    if (!required.contains(name)) {
      builder_.Jump(first, first_after);
      if (begun) {
        builder_.Jump(comma, after_comma);
        // Behind an earlier member this one may be left out at the object's end, too.
        const StateId merged = builder_.Add();
        builder_.Jump(next, merged);
        builder_.Jump(after, merged);
        next = merged;
      } else {
        next = after;
      }
    } else {
      may_be_empty = false;
      next = after;
    }
    begun = true;
    first = first_after;
    comma = after_comma;
  }
  if (more != false) {
    std::vector<std::string> names;
    for (const auto& [name, schema] : properties.items()) names.push_back(name);
    const StateId member = builder_.Add(), after = builder_.Add();
    WriteMember(member, Key(names), Rule({more, s.path + "/additionalProperties"}), after);
    builder_.Jump(first, member);
    builder_.Jump(comma, member);
    behind_comma(after, member);
    const StateId merged = builder_.Add();
    builder_.Jump(next, merged);
    builder_.Jump(after, merged);
    next = merged;
  }
  if (may_be_empty) builder_.Byte(open, '}', to);
  const StateId close = builder_.Add();
  builder_.Call(next, Space(), close);
  builder_.Byte(close, '}', to);
}

void SchemaCompiler::WriteMap(const Subschema& s, const Json& values, StateId from, StateId to) {
  uint32_t min = 0, max = kUnlimited;
  if (s.schema.is_object()) {
    min = Count(s, "minProperties", 0);
    max = Count(s, "maxProperties", kUnlimited);
  }
  StateId state = builder_.Literal(from, "{");
  if (min == 0) builder_.Byte(state, '}', to);
  if (values == false || max == 0 || min > max) return;
  const StateId key = Key({});
  const StateId value = Rule({values, s.path + "/additionalProperties"});
  const uint32_t counted = max == kUnlimited ? std::max(min, 1u) : max;
  for (uint32_t i = 0;; ++i) {
    if (i >= min && i > 0) {
      const StateId close = builder_.Add();
      builder_.Call(state, Space(), close);
      builder_.Byte(close, '}', to);
    }
    if (i == counted && max != kUnlimited) break;
    const StateId comma = i == 0 ? state : builder_.Literal(state, ",");
    const StateId member = builder_.Add();
    builder_.Call(comma, Space(), member);
    if (i == counted) {
      WriteMember(member, key, value, state);
      break;
    }
    const StateId next = builder_.Add();
    WriteMember(member, key, value, next);
    state = next;
  }
}

StateId SchemaCompiler::Key(const std::vector<std::string>& but) {
  std::string name = "key";
  for (const std::string& other : but) name += Json(other).dump();
  StateId& rule = shared_[name];
  if (rule != 0) return rule;
  rule = builder_.Add();
  const StateId end = builder_.AddEnd();
  if (but.empty()) {
    WritePlainString(0, kUnlimited, rule, end);
    return shared_[name];
  }
  // Characters have one spelling here, so that no escape spells one of the names.
  std::vector<std::u32string> texts;
  for (const std::string& other : but) texts.push_back(ToCharacters(other));
  const StateId open = builder_.Literal(rule, "\"");
  const StateId close = builder_.Add();
  characters_.All(open, AllBut(texts), 0, kUnlimited, close);
  builder_.Byte(close, '"', end);
  return rule;
}

StateId SchemaCompiler::Space() {
  StateId& rule = shared_["space"];
  if (rule != 0) return rule;
  rule = builder_.Add();
  const StateId end = builder_.AddEnd();
  builder_.Jump(rule, end);
  builder_.Byte(rule, ' ', end);
  const StateId line = builder_.Literal(rule, "\n");
  builder_.Jump(line, end);
  for (const auto& [blank, most] : {std::pair(' ', kIndentation), std::pair('\t', kTabs)}) {
    StateId before = line;
    for (int i = 0; i < most; ++i) {
      const StateId next = builder_.Literal(before, std::string_view(&blank, 1));
      builder_.Jump(next, end);
      before = next;
    }
  }
  return rule;
}

StateId SchemaCompiler::SpaceAfterColon() {
  StateId& rule = shared_["space after colon"];
  if (rule != 0) return rule;
  rule = builder_.Add();
  const StateId end = builder_.AddEnd();
  builder_.Jump(rule, end);
  builder_.Byte(rule, ' ', end);
  return rule;
}

StateId SchemaCompiler::LeadingSpace() {
  StateId& rule = shared_["leading space"];
  if (rule != 0) return rule;
  rule = builder_.Add();
  const StateId end = builder_.AddEnd();
  builder_.Jump(rule, end);
  builder_.Byte(rule, ' ', end);
  builder_.Byte(rule, '\n', end);
  return rule;
}

}  // namespace litecache::grammar

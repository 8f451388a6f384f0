#include "grammar/schema_compiler.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "grammar/schema_keywords.h"

namespace litecache::grammar {
namespace {

constexpr size_t kMaxRules = 20'000;
// Limit on the text of all subschemas: this plus a multiple of the schema's own size. Cyclic
// combinations grow until they reach it.
constexpr size_t kRuleBytes = size_t{256} << 10;
constexpr size_t kRuleBytesGrowth = 16;
constexpr int kIndentation = 24;  // blanks after a new line
constexpr int kTabs = 6;

}  // namespace

StateId SchemaCompiler::Compile(const Json& root) {
  const SchemaDocument document(root, &work_left_);
  document.ChargeFor(root);
  document_ = &document;
  rules_.clear();  // references refer to this document
  rule_bytes_left_ = kRuleBytes + kRuleBytesGrowth * root.dump().size();
  const StateId start = Rule({root, "#"}, root_form_);
  while (!pending_.empty()) {
    const Pending rule = std::move(pending_.front());
    pending_.pop_front();
    Write(rule);
  }
  document_ = nullptr;
  return start;
}

StateId SchemaCompiler::Rule(Subschema subschema, Form form) {
  // A lone reference is replaced by its target.
  std::set<std::string> seen;
  while (subschema.schema.is_object() && subschema.schema.contains("$ref")) {
    subschema = document_->Flatten(subschema);
    if (!subschema.schema.is_object() || !subschema.schema.contains("$ref")) break;
    const auto reference = Expect(subschema, "$ref", Json::value_t::string, "a text");
    if (!seen.insert(reference.get<std::string>()).second) {
      throw InvalidArgument("{}: its references are circular", subschema.path);
    }
    subschema = document_->Resolve(reference.get<std::string>(), subschema.path);
  }
  document_->ChargeFor(subschema.schema);
  std::pair<std::string, Form> key(subschema.schema.dump(), form);
  const auto found = rules_.find(key);
  if (found != rules_.end()) return found->second;
  if (rules_.size() >= kMaxRules || key.first.size() > rule_bytes_left_) {
    throw InvalidArgument(
        "the schema is too large: its references and combinations never end, or give too many "
        "parts");
  }
  rule_bytes_left_ -= key.first.size();
  const StateId start = builder_.Add();
  const StateId end = builder_.AddEnd();
  rules_.emplace(std::move(key), start);
  pending_.push_back({std::move(subschema), form, start, end});
  return start;
}

void SchemaCompiler::Write(const Pending& rule) {
  const Subschema s = document_->Flatten(rule.subschema);
  const Json& schema = s.schema;
  if (schema == false) return;  // no value is allowed
  if (schema != true && !schema.is_object()) {
    throw InvalidArgument("{}: a schema is an object, true or false", s.path);
  }
  if (schema.is_object()) {
    CheckKeywords(s);
    if (schema.contains("$ref")) return builder_.Call(rule.start, Rule(s, rule.form), rule.end);
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (!schema.contains(keyword)) continue;
      return WriteChoices(s, keyword, rule.form, rule.start, rule.end);
    }
    if (schema.contains("const") || schema.contains("enum")) {
      return WriteConstants(s, rule.form, rule.start, rule.end);
    }
  }
  auto types = TypesOf(s);
  for (const std::string& type : types) {
    // Every integer is a number, so "integer" is not written again next to "number".
    const bool covered =
        type == "integer" && std::find(types.begin(), types.end(), "number") != types.end();
    if (!covered) WriteType(s, type, rule.form, rule.start, rule.end);
  }
}

void SchemaCompiler::WriteChoices(const Subschema& s, const char* keyword, Form form, StateId from,
                                  StateId to) {
  const Json& choices = Expect(s, keyword, Json::value_t::array, "an array");
  if (choices.empty()) throw InvalidArgument("{}/{}: it is empty", s.path, keyword);
  Json rest = Json::object();  // the fields besides anyOf/oneOf
  for (const auto& [key, value] : s.schema.items()) {
    if (key != keyword && !IsAnnotation(key)) rest[key] = value;
  }
  std::vector<Subschema> parts;
  for (size_t i = 0; i < choices.size(); ++i) {
    parts.push_back({choices[i], fmt::format("{}/{}/{}", s.path, keyword, i)});
  }
  if (std::string_view(keyword) == "oneOf") {
    if (const auto both = document_->FindOverlap(parts)) {
      throw Unsupported(
          "{}/oneOf: a value may match both {} and {}; use anyOf, or tell them apart by type, or "
          "by a required property with different constants",
          s.path, both->first, both->second);
    }
  }
  for (Subschema& part : parts) {
    // The other fields apply to every choice.
    document_->ChargeFor(rest);
    if (!rest.empty()) part.schema = Json{{"allOf", Json::array({rest, part.schema})}};
    builder_.Call(from, Rule(std::move(part), form), to);
  }
}

void SchemaCompiler::WriteConstants(const Subschema& s, Form form, StateId from, StateId to) {
  if (form == kParameters || form == kKeywords) {
    throw Unsupported("{}: const and enum are not supported for these arguments", s.path);
  }
  for (const auto& [keyword, value] : s.schema.items()) {
    if (IsAnnotation(keyword) || keyword == "type" || keyword == "const" || keyword == "enum") {
      continue;
    }
    throw Unsupported("{}: '{}' beside const or enum is not supported", s.path, Shortened(keyword));
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
  std::set<std::string> texts;
  for (const Json& value : values) {
    const std::string type = TypeOfValue(value);
    const auto is = [&](const char* name) {
      return std::find(types.begin(), types.end(), name) != types.end();
    };
    if (!is(type.c_str()) && !(type == "integer" && is("number"))) continue;
    auto text = scalars_.Text(value);
    if (form == kParameter && value.is_string()) {
      text = value.get<std::string>();
      if (text->find(tags_->end) != std::string::npos) continue;
    }
    if (text) texts.insert(*std::move(text));
  }
  const StateId after = form == kParameter ? ParameterEnd(to) : to;
  builder_.Literals(from, texts, after);
}

void SchemaCompiler::WriteType(const Subschema& s, const std::string& type, Form form, StateId from,
                               StateId to) {
  if (form == kParameters || form == kKeywords) {
    if (type != "object") return;
    return form == kParameters ? WriteParameters(s, from, to) : WriteObject(s, form, from, to);
  }
  if (form == kParameter) {
    to = ParameterEnd(to);
    if (type == "string") return scalars_.Parameter(s, tags_->end, from, to);
  }
  if (type == "null") return builder_.Literal(from, "null", to);
  if (type == "boolean") {
    builder_.Literal(from, "true", to);
    return builder_.Literal(from, "false", to);
  }
  if (type == "string") return scalars_.String(s, from, to);
  if (type == "array") return WriteArray(s, from, to);
  if (type == "object") return WriteObject(s, kJson, from, to);
  scalars_.Number(s, type == "integer", from, to);
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
  StateId state = builder_.Literal(from, "[");  // after i items
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

StateId SchemaCompiler::Space() {
  StateId& rule = shared_["space"];
  if (rule != 0) return rule;
  rule = builder_.Add();
  const StateId end = builder_.AddEnd();
  builder_.Jump(rule, end);
  if (!spaces_) return rule;
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

StateId SchemaCompiler::AtMostOne(std::string_view characters) {
  StateId& rule = shared_[std::string(characters)];
  if (rule != 0) return rule;
  rule = builder_.Add();
  const StateId end = builder_.AddEnd();
  builder_.Jump(rule, end);
  if (!spaces_) return rule;
  for (const char c : characters) builder_.Byte(rule, c, end);
  return rule;
}

}  // namespace litecache::grammar

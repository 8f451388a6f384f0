// The objects of a schema: as JSON, as arguments of a call and as parameters in tags.
#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "grammar/schema_compiler.h"
#include "grammar/schema_keywords.h"

namespace litecache::grammar {

std::string SchemaCompiler::Name(const std::string& name, Form form,
                                 const std::string& path) const {
  if (form == kKeywords) {
    const bool word = std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c >= 0x80;
    });
    if (word && !name.empty()) return name;
    throw Unsupported("{}: this name cannot be that of an argument", path);
  }
  const auto written = scalars_.Name(name);
  if (!written) throw Unsupported("{}: this name cannot be written without quotes", path);
  return *written;
}

void SchemaCompiler::WriteMember(Form form, StateId from, StateId key, StateId value, StateId to) {
  const StateId colon = builder_.Add(), space = builder_.Add(), begin = builder_.Add();
  builder_.Call(from, key, colon);
  builder_.Byte(colon, form == kKeywords ? '=' : ':', space);
  if (form == kKeywords) builder_.Jump(space, begin);
  if (form != kKeywords) builder_.Call(space, AtMostOne(" "), begin);
  builder_.Call(begin, value, to);
}

SchemaCompiler::Properties SchemaCompiler::PropertiesOf(const Subschema& s) const {
  std::vector<std::pair<std::string, Json>> properties;
  std::set<std::string> names;
  if (s.schema.contains("properties")) {
    for (const auto& [name, schema] :
         Expect(s, "properties", Json::value_t::object, "an object").items()) {
      properties.emplace_back(name, schema);
      names.insert(name);
    }
  }
  // A schema that names properties and has no additionalProperties allows no others.
  const bool named = s.schema.contains("properties");
  Json more = named ? Json(false) : Json(true);
  if (s.schema.contains("additionalProperties")) more = s.schema["additionalProperties"];
  std::set<std::string> required;
  if (s.schema.contains("required")) {
    for (const Json& name : Expect(s, "required", Json::value_t::array, "an array")) {
      if (!name.is_string()) throw InvalidArgument("{}/required: names are texts", s.path);
      required.insert(name.get<std::string>());
      // A required property without a schema of its own has the schema of additional properties.
      if (names.insert(name.get<std::string>()).second) {
        document_->ChargeFor(more);
        const bool silent = !s.schema.contains("additionalProperties");
        properties.emplace_back(name.get<std::string>(), silent ? Json(true) : more);
      }
    }
  }
  return {std::move(properties), std::move(required), std::move(more)};
}

void SchemaCompiler::WriteObject(const Subschema& s, Form form, StateId from, StateId to) {
  const bool keywords = form == kKeywords;
  if (!s.schema.is_object()) {
    return keywords ? builder_.Literal(from, "()", to) : WriteMap(s, true, from, to);
  }
  auto [properties, required, more] = PropertiesOf(s);
  if (keywords) more = false;  // names that the schema does not have are not written
  if (properties.empty()) {
    return keywords ? builder_.Literal(from, "()", to) : WriteMap(s, more, from, to);
  }
  for (const char* keyword : {"minProperties", "maxProperties"}) {
    if (!s.schema.contains(keyword)) continue;
    const uint32_t count = Count(s, keyword, 0);
    const bool met = std::string_view(keyword) == "minProperties"
                         ? count <= required.size()
                         : more == false && count >= properties.size();
    if (!met) throw Unsupported("{}: '{}' beside 'properties' is not supported", s.path, keyword);
  }

  // Before member i: `first` has no member before it; `next` has one and needs a comma.
  const char close_bracket = keywords ? ')' : '}';
  StateId first = builder_.Literal(from, keywords ? "(" : "{");
  StateId next = builder_.Add();
  StateId comma = builder_.Add();  // after the comma, where member i or a later one may begin
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
  for (const auto& [name, schema] : properties) {
    const StateId member = builder_.Add();
    const StateId after = builder_.Add(), after_comma = builder_.Add();
    const StateId key = builder_.Add(), key_end = builder_.AddEnd();
    const std::string path = PathOf(s.path + "/properties", PointerPart(name));
    builder_.Literal(key, Name(name, form, path), key_end);
    WriteMember(form, member, key, Rule({schema, path}), after);
    builder_.Jump(first, member);
    if (begun) builder_.Jump(comma, member);
    behind_comma(after, after_comma);
    const StateId first_after = builder_.Add();
    if (!required.contains(name)) {
      builder_.Jump(first, first_after);
      if (begun) {
        builder_.Jump(comma, after_comma);
        // After an earlier member this one may also be left out at the object's end.
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
    const StateId member = builder_.Add(), after = builder_.Add();
    std::set<std::string> names;
    for (const auto& [name, schema] : properties) names.insert(name);
    WriteMember(kJson, member, scalars_.Key({names.begin(), names.end()}),
                Rule({more, s.path + "/additionalProperties"}), after);
    builder_.Jump(first, member);
    builder_.Jump(comma, member);
    behind_comma(after, member);
    const StateId merged = builder_.Add();
    builder_.Jump(next, merged);
    builder_.Jump(after, merged);
    next = merged;
  }
  if (may_be_empty) builder_.Byte(open, close_bracket, to);
  const StateId close = builder_.Add();
  builder_.Call(next, Space(), close);
  builder_.Byte(close, close_bracket, to);
}

void SchemaCompiler::WriteParameters(const Subschema& s, StateId from, StateId to) {
  if (!s.schema.is_object()) return builder_.Jump(from, to);
  const auto [properties, required, more] = PropertiesOf(s);
  if (Count(s, "minProperties", 0) > required.size() ||
      Count(s, "maxProperties", kUnlimited) < properties.size()) {
    throw Unsupported("{}: the number of arguments in tags cannot be limited", s.path);
  }
  std::string before_value(tags_->name_end);
  if (!tags_->value.empty()) before_value += fmt::format("{}{}", tags_->separator, tags_->value);
  if (tags_->lines) before_value += '\n';
  const std::string not_in_names = fmt::format("<>\n{}", tags_->name_end.front());
  for (const auto& [name, schema] : properties) {
    const std::string path = PathOf(s.path + "/properties", PointerPart(name));
    if (name.empty() || name.find_first_of(not_in_names) != std::string::npos) {
      throw Unsupported("{}: this name cannot be written in a tag", path);
    }
    const StateId value =
        builder_.Literal(from, fmt::format("{}{}{}", tags_->name, name, before_value));
    const StateId end = builder_.Add(), next = builder_.Add();
    builder_.Call(value, Rule({schema, path}, kParameter), end);
    builder_.Literal(end, tags_->separator, next);
    if (!required.contains(name)) builder_.Jump(from, next);
    from = next;
  }
  builder_.Jump(from, to);
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
  const StateId key = scalars_.Key({});
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
      WriteMember(kJson, member, key, value, state);
      break;
    }
    const StateId next = builder_.Add();
    WriteMember(kJson, member, key, value, next);
    state = next;
  }
}

StateId SchemaCompiler::ParameterEnd(StateId to) {
  const StateId from = builder_.Add();
  builder_.Literal(from, fmt::format("{}{}", tags_->lines ? "\n" : "", tags_->end), to);
  return from;
}

}  // namespace litecache::grammar

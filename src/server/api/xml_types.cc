#include "server/api/xml_types.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "grammar/schema_document.h"
#include "grammar/schema_values.h"
#include "server/api/python_literal.h"

namespace litecache::server {
namespace {

using grammar::SchemaDocument;

constexpr std::string_view kBlanksAroundValues = " \n\r\t";
constexpr int kDeepest = 16;  // alternatives inside of alternatives

// The alternatives of a schema; null: it has none.
const Json* Alternatives(const Json& schema) {
  if (!schema.is_object()) return nullptr;
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const auto found = schema.find(keyword);
    if (found != schema.end() && found->is_array()) return &*found;
  }
  return nullptr;
}

// `schema` without references and allOf.
Json Plain(const SchemaDocument& document, const Json& schema, int depth) {
  if (depth > kDeepest) throw Unsupported("alternatives are nested too deep");
  document.ChargeFor(schema);
  return document.Plain({schema, "#"}).schema;
}

void AddTypes(const SchemaDocument& document, const Json& schema, int depth,
              std::set<std::string>* types) {
  const Json plain = Plain(document, schema, depth);
  const Json* alternatives = Alternatives(plain);
  if (alternatives == nullptr || plain.contains("type")) {
    for (std::string& type : grammar::TypesOf({plain, "#"})) types->insert(std::move(type));
    return;
  }
  for (const Json& one : *alternatives) AddTypes(document, one, depth + 1, types);
}

void AddArguments(const SchemaDocument& document, const Json& schema, int depth,
                  ArgumentTypes* arguments) {
  const Json plain = Plain(document, schema, depth);
  if (const Json* alternatives = Alternatives(plain)) {
    for (const Json& one : *alternatives) AddArguments(document, one, depth + 1, arguments);
  }
  if (!plain.is_object() || !plain.contains("properties")) return;
  const Json& properties = plain["properties"];
  if (!properties.is_object()) return;
  for (const auto& [name, property] : properties.items()) {
    try {
      std::set<std::string> types;
      AddTypes(document, property, 0, &types);
      (*arguments)[name].merge(std::move(types));
    } catch (const InvalidArgument&) {  // wrong: left out
    } catch (const Unsupported&) {      // too complex: left out
    }
  }
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kBlanksAroundValues), text.size());
  return text.substr(begin, text.find_last_not_of(kBlanksAroundValues) + 1 - begin);
}

// The type of JSON; unset for other texts.
std::optional<std::string> TypeOfJson(std::string_view json) {
  try {
    auto limits = io::JsonLimits::OfRequest();
    return grammar::TypeOfValue(io::ParseLimitedJson<Json>(json, &limits));
  } catch (const io::JsonError&) {
    return std::nullopt;
  }
}

}  // namespace

CallTypes TypesOfCalls(const Json& tools) {
  CallTypes calls;
  size_t work = grammar::kSchemaWork;
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    ArgumentTypes& arguments = calls[function["name"].get<std::string>()];
    const auto parameters = function.find("parameters");
    if (parameters == function.end()) continue;
    try {
      AddArguments(SchemaDocument(*parameters, &work), *parameters, 0, &arguments);
    } catch (const InvalidArgument&) {  // as above
    } catch (const Unsupported&) {
    }
  }
  return calls;
}

std::optional<std::string> ReadValue(std::string_view text, const std::set<std::string>& types) {
  std::string json(Trimmed(text));
  auto type = TypeOfJson(json);
  if (!type && !json.empty() && json[0] != '\'') {
    // Python's spelling, with which templates repeat values of earlier calls.
    json = JsonOfPython(json).value_or("");
    type = TypeOfJson(json);
  }
  if (!type) return std::nullopt;
  const bool listed = types.contains(*type) || (*type == "integer" && types.contains("number"));
  if (types.contains("string") && (*type == "string" || !listed)) return std::nullopt;
  return json;
}

}  // namespace litecache::server

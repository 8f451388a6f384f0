#include "grammar/schema_keywords.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "grammar/automaton.h"

namespace litecache::grammar {
namespace {

// All supported keywords. Others are rejected.
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

}  // namespace

void CheckKeywords(const Subschema& s) {
  for (const auto& [keyword, value] : s.schema.items()) {
    if (IsAnnotation(keyword)) continue;
    if (std::find(kKeywords.begin(), kKeywords.end(), keyword) == kKeywords.end()) {
      throw Unsupported("{}: the keyword '{}' is not supported", s.path, Shortened(keyword));
    }
  }
}

uint32_t Count(const Subschema& s, const char* keyword, uint32_t fallback) {
  const auto found = s.schema.find(keyword);
  if (found == s.schema.end()) return fallback;
  const bool whole = found->is_number() && found->get<double>() == std::floor(found->get<double>());
  if (!whole || found->get<double>() < 0) {
    throw InvalidArgument("{}/{}: {} is no count", s.path, keyword, Shown(*found));
  }
  if (found->get<double>() >= AutomatonBuilder::kMaxStates) {
    if (std::string_view(keyword).starts_with("max")) return kUnlimited;
    throw InvalidArgument("{}/{}: {} is too large", s.path, keyword, found->dump());
  }
  return static_cast<uint32_t>(found->get<double>());
}

const Json& Expect(const Subschema& s, const char* keyword, Json::value_t type, const char* what) {
  const Json& value = s.schema[keyword];
  if (value.type() != type) throw InvalidArgument("{}/{}: {} is expected", s.path, keyword, what);
  return value;
}

std::string PointerPart(std::string_view name) {
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

}  // namespace litecache::grammar

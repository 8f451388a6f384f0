// Reads the fields of a schema with type checks. All functions throw with the path of the place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "grammar/schema_document.h"

namespace litecache::grammar {

// Throws Unsupported for a field that is neither a supported keyword nor an annotation.
void CheckKeywords(const Subschema& s);

// A count such as minItems; kUnlimited for a maximum larger than any automaton. Throws
// InvalidArgument for an invalid count or a minimum that is too large.
uint32_t Count(const Subschema& s, const char* keyword, uint32_t fallback);

// A field that exists. Throws InvalidArgument, "`what` is expected", if it has another type.
const Json& Expect(const Subschema& s, const char* keyword, Json::value_t type, const char* what);

// A name as part of a JSON pointer.
std::string PointerPart(std::string_view name);

}  // namespace litecache::grammar

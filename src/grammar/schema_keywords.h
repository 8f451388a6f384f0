// The fields of a schema, read with their types checked. All throw with the path of the place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "grammar/schema_document.h"

namespace litecache::grammar {

// Throws Unsupported for a field that is neither known nor an annotation.
void CheckKeywords(const Subschema& s);

// A count such as minItems; kUnlimited for a maximum beyond all automata. Throws InvalidArgument
// for what is no count, or too large a minimum.
uint32_t Count(const Subschema& s, const char* keyword, uint32_t fallback);

// A field that is there. Throws InvalidArgument: "`what` is expected", where it has another type.
const Json& Expect(const Subschema& s, const char* keyword, Json::value_t type, const char* what);

// A name as a part of a JSON pointer.
std::string PointerPart(std::string_view name);

}  // namespace litecache::grammar

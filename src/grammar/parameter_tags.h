// How arguments of a function are written otherwise than as JSON.
#pragma once

#include <optional>
#include <string_view>

namespace litecache::grammar {

// Each argument between tags, as in
//   <parameter=NAME>
//   VALUE
//   </parameter>
// Strings are written as they are, other values as JSON.
struct ParameterTags {
  std::string_view name;      // before the name
  std::string_view name_end;  // behind it
  std::string_view value;     // before the value; "": name_end is the tag before it
  std::string_view end;       // behind the value; no string contains it
  // Line breaks next to a value, one behind the tag before it and one before `end`, belong to the
  // tags.
  bool lines = false;
  std::string_view separator;  // between one tag and the next: a line break or nothing
};

// JSON with other quotes, as in {city:<|"|>Paris<|"|>,days:3}: those around strings, which have no
// escapes. Names of fields have none, and there is no white space.
struct StringQuotes {
  std::string_view text;  // no string contains it
  bool control = false;   // it is a control token
};

// How arguments are written, at most one of these; none: as a JSON object.
struct ArgumentForm {
  std::optional<ParameterTags> tags;
  std::optional<StringQuotes> quotes;
  bool keywords = false;  // as in (city="Paris", days=3), with JSON values
};

}  // namespace litecache::grammar

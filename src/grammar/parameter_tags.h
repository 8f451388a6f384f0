// Arguments of a function, each between tags, as in
//   <parameter=NAME>
//   VALUE
//   </parameter>
// Strings are written as they are, other values as JSON.
#pragma once

#include <string_view>

namespace litecache::grammar {

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

}  // namespace litecache::grammar

// Arguments of a function as Qwen3-Coder, Qwen3.5 and others write them, each between tags:
//   <parameter=NAME>
//   VALUE
//   </parameter>
// Strings are written as they are, other values as JSON.
#pragma once

#include <string_view>

namespace litecache::grammar {

inline constexpr std::string_view kParameterTag = "<parameter=";  // then the name and >
inline constexpr std::string_view kParameterEndTag = "</parameter>";

}  // namespace litecache::grammar

// What `--quantize` and `litecache quantize --type` say: a type of weights, with exceptions by
// module.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace litecache::model {

struct ModuleTypes {
  std::string type;
  // The last part of a matrix's name before ".weight", and its type: "v_proj", "none".
  std::vector<std::pair<std::string, std::string>> modules;

  // "q4_k" or "q4_k,lm_head=q8_0,v_proj=none". Throws InvalidArgument for an exception of another
  // form.
  static ModuleTypes Parse(std::string_view text);
};

// Whether a module's matrix stays as it is, whatever the types are. Learned positions are added,
// not multiplied. Errors of experts' routers exchange experts, and those of the rates of recurrent
// layers add up over tokens: both are a thousandth of a model.
bool IsNeverQuantized(std::string_view module);

}  // namespace litecache::model

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

  // What files that are quantized on the disk have of a module: its own type, else the general one;
  // "none" of what stays as it is, as embeddings and the output matrix do unless they are named.
  std::string_view Of(std::string_view module) const;
};

// Whether a module's matrix stays as it is, whatever the types are. Learned positions are added,
// not multiplied. Errors of experts' routers exchange experts, and those of the rates of recurrent
// layers add up over tokens: both are a thousandth of a model.
bool IsNeverQuantized(std::string_view module);

}  // namespace litecache::model

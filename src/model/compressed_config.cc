#include "model/compressed_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "model/weight_types.h"

namespace litecache::model {
namespace {

using OrderedJson = nlohmann::ordered_json;

const char* FormatOf(const CompressedGroup& group) {
  return group.is_float ? "float-quantized" : "pack-quantized";
}

// All linear layers, or where there are several groups, their modules.
OrderedJson TargetsOf(const std::vector<CompressedGroup>& groups, const CompressedGroup& group) {
  if (groups.size() == 1) return OrderedJson::array({"Linear"});
  std::set<std::string> targets;
  for (const std::string& module : group.modules) {
    const bool elsewhere = std::ranges::any_of(groups, [&](const CompressedGroup& other) {
      return &other != &group && std::ranges::any_of(other.modules, [&](const std::string& name) {
        return ModuleOf(name) == ModuleOf(module);
      });
    });
    targets.insert(elsewhere ? module : fmt::format("re:(.*[.])?{}$", ModuleOf(module)));
  }
  return targets;
}

}  // namespace

OrderedJson CompressedConfig(const std::vector<CompressedGroup>& groups,
                             const std::vector<std::string>& ignored) {
  const bool mixed = std::ranges::any_of(
      groups, [&](const auto& group) { return group.is_float != groups.front().is_float; });
  OrderedJson parts = OrderedJson::object();
  for (const CompressedGroup& group : groups) {
    const bool by_row = group.group_size == 0;
    OrderedJson part = {{"targets", TargetsOf(groups, group)},
                        {"weights",
                         {{"num_bits", group.bits},
                          {"type", group.is_float ? "float" : "int"},
                          {"symmetric", true},
                          {"strategy", by_row ? "channel" : "group"},
                          {"group_size", by_row ? OrderedJson() : OrderedJson(group.group_size)},
                          {"dynamic", false}}},
                        {"input_activations", nullptr},
                        {"output_activations", nullptr}};
    // Older readers do not know this field, and need it only here.
    if (mixed) part["format"] = FormatOf(group);
    parts[fmt::format("group_{}", parts.size())] = part;
  }
  return {{"quant_method", "compressed-tensors"},
          {"format", mixed ? "mixed-precision" : FormatOf(groups.front())},
          {"quantization_status", "compressed"},
          {"config_groups", parts},
          {"ignore", ignored},
          {"kv_cache_scheme", nullptr}};
}

}  // namespace litecache::model

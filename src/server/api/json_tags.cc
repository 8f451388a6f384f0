#include "server/api/json_tags.h"

#include <fmt/format.h>

#include <array>

#include "server/api/json.h"

namespace litecache::server {
namespace {

// In the order in which templates are searched for them.
constexpr std::array<std::pair<ToolFormat, JsonTags>, 11> kJsonTags = {{
    {ToolFormat::kMistralNames,
     {.open = "[TOOL_CALLS]", .behind_name = "[ARGS]", .writes_names = true}},
    {ToolFormat::kMistral,
     {.open = "[TOOL_CALLS]",
      .before = "[",
      .between = ", ",
      .after = "]",
      .behind_name = "[ARGS]"}},
    {ToolFormat::kHermes,
     {.open = "<tool_call>",
      .close = "</tool_call>",
      .before = "\n",
      .between = "\n",
      .after = "\n"}},
    {ToolFormat::kCommand,
     {.open = "<|START_ACTION|>",
      .close = "<|END_ACTION|>",
      .before = "[\n    ",
      .between = ",\n    ",
      .after = "\n]",
      .name = "tool_name",
      .arguments = "parameters"}},
    {ToolFormat::kPhi, {.open = "<|tool_call|>", .close = "<|/tool_call|>"}},
    {ToolFormat::kGranite, {.open = "<|tool_call|>", .before = "[", .between = ", ", .after = "]"}},
    {ToolFormat::kNemotron,
     {.open = "<TOOLCALL>", .close = "</TOOLCALL>", .before = "[", .between = ", ", .after = "]"}},
    {ToolFormat::kHunyuan,
     {.open = "<tool_calls>",
      .close = "</tool_calls>",
      .before = "[",
      .between = ", ",
      .after = "]"}},
    {ToolFormat::kApertus,
     {.open = "<|tools_prefix|>",
      .close = "<|tools_suffix|>",
      .before = "[",
      .between = ", ",
      .after = "]",
      .name = ""}},
    {ToolFormat::kLlama, {.arguments = "parameters"}},
    {ToolFormat::kPlain, {}},
}};

}  // namespace

std::string JsonTags::BeforeCalls() const {
  return list() ? fmt::format("{}{}", open, before) : "";
}

std::string JsonTags::AfterCalls() const { return list() ? fmt::format("{}{}", after, close) : ""; }

std::string JsonTags::BeforeArguments(std::string_view function) const {
  if (writes_names) return fmt::format("{}{}{}", open, function, behind_name);
  const std::string quoted = Dump(function);
  const std::string begin = list() ? "" : fmt::format("{}{}", open, before);
  if (name.empty()) return fmt::format("{}{{{}: ", begin, quoted);
  return fmt::format("{}{{\"{}\": {}, \"{}\": ", begin, name, quoted, arguments);
}

std::string JsonTags::AfterArguments() const {
  if (writes_names) return "";
  return list() ? "}" : fmt::format("}}{}{}", after, close);
}

std::optional<std::string> JsonTags::Separator() const {
  return open.empty() ? std::nullopt : std::optional<std::string>(between);
}

std::string JsonTags::AllTags() const {
  return fmt::format("{}{}{}", open, close, behind_name.empty() ? "" : "[CALL_ID][ARGS]");
}

const JsonTags* JsonTagsOf(ToolFormat format) {
  for (const auto& [form, tags] : kJsonTags) {
    if (form == format) return &tags;
  }
  return nullptr;
}

std::optional<ToolFormat> DetectJsonTags(std::string_view chat_template) {
  const auto has = [&](std::string_view part) {
    return chat_template.find(part) != std::string_view::npos;
  };
  // A list behind the tag tells more than the tag: some templates also mention <tool_call>.
  for (const bool list : {true, false}) {
    for (const auto& [format, tags] : kJsonTags) {
      if (tags.open.empty() || !has(tags.open) || !has(tags.close)) continue;
      if (tags.writes_names && !has(tags.behind_name)) continue;
      if (!list || (tags.list() && has(fmt::format("{}[", tags.open)))) return format;
    }
  }
  return std::nullopt;
}

}  // namespace litecache::server

#include "server/api/call_tags.h"

#include <fmt/format.h>

namespace litecache::server {
namespace {

constexpr CallTags XmlTags(std::string_view open, std::string_view close, bool lines) {
  return {.open = open,
          .close = close,
          .function = "<function=",
          .name_end = ">",
          .function_end = "</function>",
          .parameter = {.name = "<parameter=",
                        .name_end = ">",
                        .end = "</parameter>",
                        .lines = lines,
                        .separator = "\n"}};
}
constexpr CallTags kXmlTags = XmlTags("<tool_call>", "</tool_call>", true);
constexpr CallTags kSeedTags = XmlTags("<seed:tool_call>", "</seed:tool_call>", false);

constexpr CallTags GlmTags(std::string_view separator) {
  return {.open = "<tool_call>",
          .close = "</tool_call>",
          .parameter = {.name = "<arg_key>",
                        .name_end = "</arg_key>",
                        .value = "<arg_value>",
                        .end = "</arg_value>",
                        .separator = separator}};
}
constexpr CallTags kGlm45Tags = GlmTags("\n"), kGlm47Tags = GlmTags("");

constexpr CallTags kMiniMaxTags = {
    .open = "<minimax:tool_call>",
    .close = "</minimax:tool_call>",
    .function = "<invoke name=\"",
    .name_end = "\">",
    .function_end = "</invoke>",
    .around_all = true,
    .parameter = {.name = "<parameter name=\"",
                  .name_end = "\">",
                  .end = "</parameter>",
                  .separator = "\n"},
};

}  // namespace

std::string CallTags::BeforeCalls() const {
  return around_all ? fmt::format("{}{}", open, parameter.separator) : "";
}

std::string CallTags::AfterCalls() const { return std::string(around_all ? close : ""); }

std::string CallTags::BeforeArguments(std::string_view name) const {
  std::string text;
  if (!around_all) text += open;
  if (!around_all && !function.empty()) text += parameter.separator;
  return text + fmt::format("{}{}{}{}", function, name, name_end, parameter.separator);
}

std::string CallTags::AfterArguments() const {
  std::string text(function_end);
  if (!function_end.empty()) text += parameter.separator;
  if (!around_all) text += close;
  return text;
}

std::string CallTags::Separator() const {
  return std::string(around_all ? "" : parameter.separator);
}

std::string CallTags::AllTags() const {
  return fmt::format("{}{}{}{}{}{}{}", open, close, function_end, parameter.name,
                     parameter.name_end, parameter.value, parameter.end);
}

const CallTags* CallTagsOf(ToolFormat format) {
  switch (format) {
    case ToolFormat::kXml:
      return &kXmlTags;
    case ToolFormat::kSeed:
      return &kSeedTags;
    case ToolFormat::kGlm45:
      return &kGlm45Tags;
    case ToolFormat::kGlm47:
      return &kGlm47Tags;
    case ToolFormat::kMiniMax:
      return &kMiniMaxTags;
    default:
      return nullptr;
  }
}

std::optional<ToolFormat> DetectCallTags(std::string_view chat_template) {
  const auto has = [&](std::string_view part) {
    return chat_template.find(part) != std::string_view::npos;
  };
  if (has(kXmlTags.function) && has(kXmlTags.parameter.name)) {
    return has(kSeedTags.open) ? ToolFormat::kSeed : ToolFormat::kXml;
  }
  const grammar::ParameterTags& glm = kGlm47Tags.parameter;
  if (has(kGlm47Tags.open) && has(glm.name) && has(glm.value)) {
    return has(fmt::format("{}{}", glm.name_end, glm.value)) ? ToolFormat::kGlm47
                                                             : ToolFormat::kGlm45;
  }
  if (has(kMiniMaxTags.open) && has(kMiniMaxTags.function)) return ToolFormat::kMiniMax;
  return std::nullopt;
}

}  // namespace litecache::server

#include "server/api/tool_calls.h"

#include "server/api/call_tags.h"
#include "server/api/gemma_calls.h"
#include "server/api/harmony.h"
#include "server/api/json_tags.h"
#include "server/api/python_calls.h"

namespace litecache::server {

ToolFormat DetectToolFormat(std::string_view chat_template) {
  const auto has = [&](std::string_view part) {
    return chat_template.find(part) != std::string_view::npos;
  };
  if (IsHarmony(chat_template)) return ToolFormat::kHarmony;
  if (!has("tools")) return ToolFormat::kNone;
  if (has(GemmaTags::BeforeArguments(""))) return ToolFormat::kGemma;
  if (has(PythonTags::kOpen) && has(PythonTags::kClose)) return ToolFormat::kPython;
  if (const auto format = DetectCallTags(chat_template)) return *format;
  if (const auto format = DetectJsonTags(chat_template)) return *format;
  if (has("<|python_tag|>") || has("\"parameters\": ")) return ToolFormat::kLlama;
  return ToolFormat::kPlain;
}

namespace {

// What the form's table says; harmony has no tags of these kinds.
template <typename Text, typename Get>
Text OfTags(ToolFormat format, const Get& get) {
  if (const CallTags* tags = CallTagsOf(format)) return get(*tags);
  if (const JsonTags* tags = JsonTagsOf(format)) return get(*tags);
  if (format == ToolFormat::kGemma) return get(GemmaTags());
  if (format == ToolFormat::kPython) return get(PythonTags());
  return {};
}

}  // namespace

std::string BeforeCalls(ToolFormat format) {
  return OfTags<std::string>(format, [](const auto& tags) { return tags.BeforeCalls(); });
}

std::string AfterCalls(ToolFormat format) {
  return OfTags<std::string>(format, [](const auto& tags) { return tags.AfterCalls(); });
}

std::string BeforeArguments(ToolFormat format, const std::string& name) {
  if (format == ToolFormat::kHarmony) return BeforeHarmonyArguments(name);
  return OfTags<std::string>(format, [&](const auto& tags) { return tags.BeforeArguments(name); });
}

std::string AfterArguments(ToolFormat format) {
  return OfTags<std::string>(format, [](const auto& tags) { return tags.AfterArguments(); });
}

std::optional<std::string> CallSeparator(ToolFormat format) {
  return OfTags<std::optional<std::string>>(format,
                                            [](const auto& tags) { return tags.Separator(); });
}

std::string TagsOfCalls(ToolFormat format) {
  return OfTags<std::string>(format, [](const auto& tags) { return tags.AllTags(); });
}

}  // namespace litecache::server

#include "server/api/tools.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include "server/api/response_format.h"

namespace litecache::server {
namespace {

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  });
}

// Reads name, description, parameters, strict.
Json ReadFunction(Fields& function) {
  Json result = Json::object();
  const auto name = function.String("name");
  if (!name || !IsName(*name)) {
    function.Fail("name", "letters, digits, _, - and . are expected, at most 128");
  }
  result["name"] = *name;
  if (const auto text = function.String("description")) result["description"] = *text;
  if (const Json* parameters = function.Object("parameters")) result["parameters"] = *parameters;
  // Required calls follow the parameters in either case; the model writes other calls freely.
  function.Bool("strict");
  return result;
}

void ReadChoice(Fields& fields, bool flat, ToolUse* use) {
  use->choice = use->tools.empty() ? ToolUse::kNone : ToolUse::kAuto;
  use->choice_field = use->tools.empty() ? "none" : "auto";
  const Json* choice = fields.Find("tool_choice");
  if (choice == nullptr) return;
  use->choice_field = *choice;
  if (*choice == "none") {
    use->choice = ToolUse::kNone;
    return;
  }
  if (*choice == "auto") return;
  if (use->tools.empty()) fields.Fail("tool_choice", "it needs 'tools'");
  use->choice = ToolUse::kRequired;
  if (*choice == "required") return;
  if (!choice->is_object()) {
    fields.Fail("tool_choice", "none, auto, required or a function is expected");
  }
  Fields object(*choice, fields.Path("tool_choice."));
  if (object.String("type").value_or("") != "function") {
    object.Fail("type", "function is expected");
  }
  std::optional<std::string> name;
  if (flat) {
    name = object.String("name");
  } else if (const Json* function = object.Object("function")) {
    Fields inner(*function, object.Path("function."));
    name = inner.String("name");
    inner.Finish();
  }
  object.Finish();
  if (!name) fields.Fail("tool_choice", "the function's name is missing");
  if (!use->Names().contains(*name)) {
    fields.Fail("tool_choice", fmt::format("there is no function '{}' in 'tools'", *name));
  }
  use->named = *name;
}

std::shared_ptr<const TokenConstraint> CallGrammar(const ServedModel& model, const ToolUse& use,
                                                   ToolFormat format) {
  std::vector<grammar::FramedSchema> frames;
  for (const Json& tool : use.tools) {
    const Json& function = tool["function"];
    const auto name = function["name"].get<std::string>();
    if (!use.named.empty() && name != use.named) continue;
    const Json none = {{"type", "object"}, {"properties", Json::object()}};
    frames.push_back({BeforeArguments(format, name), function.value("parameters", none),
                      AfterArguments(format)});
  }
  const bool several = use.parallel && use.named.empty();
  return MakeGrammar("tools", [&] {
    return model.grammars->OfFrames(frames, several ? CallSeparator(format) : nullptr);
  });
}

}  // namespace

std::set<std::string> ToolUse::Names() const {
  std::set<std::string> names;
  for (const Json& tool : tools) names.insert(tool["function"]["name"].get<std::string>());
  return names;
}

ToolCallParser ToolUse::Parser() const {
  return {format, Names(), parallel ? std::numeric_limits<int>::max() : 1};
}

ToolUse ReadTools(Fields& fields, bool flat) {
  ToolUse use;
  std::set<std::string> names;
  if (const Json* tools = fields.Array("tools")) {
    for (size_t i = 0; i < tools->size(); ++i) {
      Fields tool((*tools)[i], fmt::format("{}[{}].", fields.Path("tools"), i));
      tool.RefuseUnless("type", {"function"}, "this server knows functions only");
      Json function;
      if (flat) {
        function = ReadFunction(tool);
      } else {
        const Json* object = tool.Object("function");
        if (object == nullptr) tool.Fail("function", "it is missing");
        Fields inner(*object, tool.Path("function."));
        function = ReadFunction(inner);
        inner.Finish();
      }
      tool.Finish();
      const auto name = function["name"].get<std::string>();
      if (!names.insert(name).second) {
        fields.Fail("tools", fmt::format("there are two functions '{}'", name));
      }
      use.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  ReadChoice(fields, flat, &use);
  use.parallel = fields.Bool("parallel_tool_calls").value_or(true);
  return use;
}

void ApplyTools(const ServedModel& model, ChatPromptFields* prompt, ToolUse* use,
                Request* request) {
  if (!use->active() || !model.chat) return;
  const auto& chat_template =
      prompt->chat_template ? *prompt->chat_template : model.chat->chat_template();
  use->format = DetectToolFormat(chat_template.Source(true));
  if (use->format != ToolFormat::kNone) {
    prompt->options.tools = use->tools;
  } else if (use->choice == ToolUse::kRequired) {
    use->format = ToolFormat::kPlain;  // the grammar defines the whole form
  } else {
    throw NotSupported(
        "tools",
        "'tools': the model's chat template does not know them; 'tool_choice' \"required\" or a "
        "function works without");
  }
  if (use->choice != ToolUse::kRequired) return;
  if (request->constraint != nullptr) {
    throw BadRequest("tool_choice", "'tool_choice': the answer's form is given twice");
  }
  request->constraint = CallGrammar(model, *use, use->format);
}

}  // namespace litecache::server

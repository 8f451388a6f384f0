#include "server/api/tools.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include "server/api/call_tags.h"
#include "server/api/gemma_calls.h"
#include "server/api/harmony.h"
#include "server/api/json_calls.h"
#include "server/api/python_calls.h"
#include "server/api/response_format.h"
#include "server/api/special_tags.h"
#include "server/api/tool_prompt.h"

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
  if (use->tools.empty()) fields.Fail("tool_choice", "it requires 'tools'");
  use->choice = ToolUse::kRequired;
  if (*choice == "required") return;
  if (!choice->is_object()) {
    fields.Fail("tool_choice", "none, auto, required or a function is expected");
  }
  Fields object(*choice, fields.Path("tool_choice."));
  const std::string type = object.String("type").value_or("function");
  if (type != "function" && !(flat && type == "custom")) {
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
  grammar::Frames frames;
  if (const CallTags* tags = CallTagsOf(format)) frames.form.tags = tags->parameter;
  const auto spelled = [&](const std::string& text) {
    return WithControlTokens(text, model.tokenizer());
  };
  frames.form.keywords = format == ToolFormat::kPython;
  if (format == ToolFormat::kGemma) {
    const bool control = spelled(std::string(GemmaTags::kQuote)) != GemmaTags::kQuote;
    frames.form.quotes = {GemmaTags::kQuote, control};
  }
  frames.before = spelled(BeforeCalls(format));
  frames.after = spelled(AfterCalls(format));
  if (use.parallel && use.named.empty()) frames.separator = CallSeparator(format);
  for (const Json& tool : use.tools) {
    const Json& function = tool["function"];
    const auto name = function["name"].get<std::string>();
    if (!use.named.empty() && name != use.named) continue;
    const Json none = {{"type", "object"}, {"properties", Json::object()}};
    frames.any.push_back({spelled(BeforeArguments(format, name)),
                          function.value("parameters", none), spelled(AfterArguments(format))});
  }
  return MakeGrammar("tools", [&] { return model.grammars->OfFrames(frames); });
}

// A tool of type "custom", which takes a text, as a function.
Json ReadCustomTool(Fields& tool) {
  Json function = ReadFunction(tool);
  function["parameters"] = {{"type", "object"},
                            {"properties", {{"input", {{"type", "string"}}}}},
                            {"required", Json::array({"input"})}};
  const Json* object = tool.Object("format");
  if (object == nullptr) return function;
  Fields format(*object, tool.Path("format."));
  const auto syntax = format.String("syntax"), definition = format.String("definition");
  format.IgnoreUnless("type", {"text"},
                      "the model reads the grammar, but its input is not constrained by it");
  format.Finish();
  if (definition) {
    function["description"] = function.value("description", "") + "\nThe input follows this " +
                              syntax.value_or("") + " grammar:\n" + *definition;
  }
  return function;
}

// Harmony's headers consist of special tokens, and the messages that a client waits for end with
// these two, whether or not the model's files name both.
void KeepHeaders(const ServedModel& model, Request* request) {
  request->skip_special_tokens = false;
  if (request->ignore_eos) return;
  for (const char* token : {"<|return|>", "<|call|>"}) {
    if (const auto id = model.tokenizer().TokenToId(token)) request->stop_token_ids.push_back(*id);
  }
}

// Tools that a model can do without: nobody but the server could run them.
bool IsHosted(const std::string& type) {
  return type.starts_with("web_search") || type == "code_interpreter" || type == "image_generation";
}

}  // namespace

std::set<std::string> ToolUse::Names() const {
  std::set<std::string> names;
  for (const Json& tool : tools) names.insert(tool["function"]["name"].get<std::string>());
  return names;
}

AnswerParser ToolUse::Parser() const {
  const int most = parallel ? std::numeric_limits<int>::max() : 1;
  if (format == ToolFormat::kHarmony) {
    auto functions = active() ? std::optional(Names()) : std::nullopt;
    return AnswerParser(std::make_unique<HarmonyAnswer>(begun, std::move(functions), most));
  }
  std::unique_ptr<CallParser> calls;
  if (active() && format == ToolFormat::kGemma) calls = std::make_unique<GemmaCallParser>(most);
  if (active() && format == ToolFormat::kPython) calls = std::make_unique<PythonCallParser>(most);
  if (const CallTags* tags = CallTagsOf(format); active() && tags != nullptr) {
    calls = std::make_unique<XmlCallParser>(*tags, types, most);
  } else if (const JsonTags* json = JsonTagsOf(format); active() && json != nullptr) {
    calls = std::make_unique<JsonCallParser>(*json, Names(), most);
  }
  return AnswerParser(std::make_unique<TaggedAnswer>(thinking, think_tags, std::move(calls)));
}

ToolUse ReadTools(Fields& fields, bool flat) {
  ToolUse use;
  std::set<std::string> names;
  if (const Json* tools = fields.Array("tools")) {
    for (size_t i = 0; i < tools->size(); ++i) {
      Fields tool((*tools)[i], fmt::format("{}[{}].", fields.Path("tools"), i));
      const std::string type = tool.String("type").value_or("");
      if (flat && IsHosted(type)) {
        IgnoreField(tool.Path("type") + "=" + type, "the server does not run this tool");
        continue;
      }
      const bool custom = flat && type == "custom";
      if (!custom) {
        tool.RefuseUnless("type", {"function"}, "only tools of type 'function' are supported");
      }
      Json function;
      if (custom) {
        function = ReadCustomTool(tool);
      } else if (flat) {
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
        fields.Fail("tools", fmt::format("two functions have the name '{}'", name));
      }
      if (custom) use.custom.insert(name);
      use.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  ReadChoice(fields, flat, &use);
  use.parallel = fields.Bool("parallel_tool_calls").value_or(true);
  return use;
}

void ApplyTools(const ServedModel& model, ChatPromptFields* prompt, ToolUse* use,
                Request* request) {
  if (!model.chat) return;
  const auto& chat_template =
      prompt->chat_template ? *prompt->chat_template : model.chat->chat_template();
  const std::string& source = chat_template.Source(use->active());
  use->format = DetectToolFormat(source);
  if (use->format == ToolFormat::kNone) WriteCallsAsText(&prompt->messages);
  // As Granite 3's.
  if (JsonTagsOf(use->format) != nullptr && source.find("tool_calls") == std::string::npos) {
    WriteCallsAsModels(use->format, &prompt->messages);
  }
  if (use->format == ToolFormat::kMistral || use->format == ToolFormat::kMistralNames) {
    ShortenCallIds(&prompt->messages);
  }
  // Newer ones take results as other templates do, by the calls' ids.
  if (use->format == ToolFormat::kGemma && source.find("tool_call_id") == std::string::npos) {
    NestToolResults(&prompt->messages);
  }
  if (CallTagsOf(use->format) != nullptr) MakeArgumentsObjects(&prompt->messages);
  if (use->format == ToolFormat::kHarmony) {
    ToHarmonyMessages(&prompt->messages);
    KeepHeaders(model, request);
  }
  if (!use->active()) return;
  if (use->format == ToolFormat::kNone) {
    ExplainTools(use->tools, source.find("system") != std::string::npos, &prompt->messages);
    use->format = ToolFormat::kHermes;
  } else {
    prompt->options.tools = use->tools;
  }
  if (CallTagsOf(use->format) != nullptr) {
    use->types = std::make_shared<const CallTypes>(TypesOfCalls(use->tools));
  }
  const bool apertus = use->format == ToolFormat::kApertus;
  if (apertus || use->format == ToolFormat::kHarmony) {
    for (Json& tool : prompt->options.tools) {
      // Their templates add each function's description to a text; Apertus's first one has the
      // function's fields in the tool itself.
      tool["function"].emplace("description", "");
      const Json function = tool["function"];
      if (apertus) tool.update(function);
    }
  }
  // Some models' tags are special tokens.
  KeepSpecialTags(TagsOfCalls(use->format), model.tokenizer(), request);
  if (use->choice != ToolUse::kRequired) return;
  if (request->constraint != nullptr) {
    throw BadRequest(
        "tool_choice",
        "'tool_choice': a required call cannot be combined with another format of the answer");
  }
  request->constraint = CallGrammar(model, *use, use->format);
}

void ApplyThinking(const ServedModel& model, const ChatPromptFields& prompt, ToolUse* use,
                   Request* request) {
  const bool constrained = request->constraint != nullptr;
  if (use->format == ToolFormat::kHarmony) {
    use->thinking = Thinking::kMaybe;
    use->begun = BegunMessage(request->prompt, model.tokenizer());
    if (!constrained) return;
    request->constraint =
        ConstrainHarmony(request->constraint, use->begun, use->choice == ToolUse::kRequired,
                         model.tokenizer(), model.grammars.get());
    return;
  }
  const auto& chat_template =
      prompt.chat_template ? *prompt.chat_template : model.chat->chat_template();
  const std::string& source = chat_template.Source(!prompt.options.tools.is_null());
  const tokenizer::Tokenizer& tokenizer = model.tokenizer();
  use->think_tags = ThinkTagsOf(source);
  ThinkTags& tags = use->think_tags;
  if (!use->active()) tags.calls = "";
  use->thinking = DetectThinking(source, request->prompt, tokenizer);
  KeepSpecialTags(fmt::format("{}{}", tags.answer, tags.answer_end), tokenizer, request);
  if (use->thinking == Thinking::kNone || use->thinking == Thinking::kSaid) return;
  KeepSpecialTags(fmt::format("{}{}", tags.open, tags.close), tokenizer, request);
  if (!constrained) return;
  // Models that mark the answer with a special token say nothing before it, but for calls.
  const std::string answer = WithControlTokens(tags.answer, tokenizer);
  const bool marked = answer != tags.answer && use->choice != ToolUse::kRequired;
  request->constraint = model.grammars->AfterReasoning(
      *request->constraint,
      {.open = use->thinking == Thinking::kMaybe ? WithControlTokens(tags.open, tokenizer) : "",
       .close = WithControlTokens(tags.close, tokenizer),
       .answer = marked ? answer : ""});
}

}  // namespace litecache::server

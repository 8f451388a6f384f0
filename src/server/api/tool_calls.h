// Function calls inside the text of a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::server {

// How a model writes a call, derived from its chat template.
enum class ToolFormat {
  kNone,  // the template does not support tools
  // JSON objects with a name and arguments, between tags or as the whole answer (json_calls.h): as
  // in Qwen and Hermes, Mistral, Command R7B and A, Granite 3, Phi-4-mini, Nemotron, Hunyuan,
  // Apertus, Llama 3; and in any other template with tools.
  kHermes,
  kMistral,
  kMistralNames,
  kCommand,
  kGranite,
  kPhi,
  kNemotron,
  kHunyuan,
  kApertus,
  kLlama,
  kPlain,
  // With the arguments between tags (call_tags.h, xml_calls.h), as in Qwen3-Coder and Qwen3.5; in
  // Seed-OSS; in GLM-4.5 and 4.6, whose tags stand on lines of their own; in GLM-4.7; in
  // MiniMax-M2.
  kXml,
  kSeed,
  kGlm45,
  kGlm47,
  kMiniMax,
  // With the arguments in a notation of its own (gemma_calls.h), as in Gemma 4.
  kGemma,
  // As calls in Python (python_calls.h), as in OLMo 3.
  kPython,
  // Messages to functions.NAME, as in gpt-oss (harmony.h).
  kHarmony,
};

ToolFormat DetectToolFormat(std::string_view chat_template);

// What the form has around the calls that follow one another, and around the arguments of each.
std::string BeforeCalls(ToolFormat format);
std::string AfterCalls(ToolFormat format);
std::string BeforeArguments(ToolFormat format, const std::string& name);
std::string AfterArguments(ToolFormat format);
// Between two calls; unset where a model makes one call at a time.
std::optional<std::string> CallSeparator(ToolFormat format);
// All tags that its calls may have, one after another.
std::string TagsOfCalls(ToolFormat format);

struct ToolEvent {
  enum Kind { kText, kBegin, kArguments, kReasoning } kind = kText;
  std::string
      text;  // of the answer; the function's name; a piece of the arguments; of the thoughts
};

// Splits text that arrives in pieces into plain text and calls. Text is emitted as soon as it
// cannot be the beginning of a call; arguments are emitted as they are written once the function's
// name is known. What begins like a call but is not one is emitted as text.
class CallParser {
 public:
  virtual ~CallParser() = default;
  virtual void Add(std::string_view piece, std::vector<ToolEvent>* events) = 0;
  // The answer has ended.
  virtual void Finish(std::vector<ToolEvent>* events) = 0;
};

}  // namespace litecache::server

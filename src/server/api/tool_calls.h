// Function calls inside the text of a model.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::server {

// How a model writes a call, derived from its chat template.
enum class ToolFormat {
  kNone,  // the template does not support tools
  // Any number of <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>, as in Qwen.
  kHermes,
  // With the arguments between tags (call_tags.h, xml_calls.h), as in Qwen3-Coder and Qwen3.5; in
  // GLM-4.5 and 4.6, whose tags stand on lines of their own; in GLM-4.7; in MiniMax-M2.
  kXml,
  kGlm45,
  kGlm47,
  kMiniMax,
  // {"name": NAME, "parameters": {...}}, optionally after <|python_tag|>, as the whole answer.
  kLlama,
  // [TOOL_CALLS][{"name": NAME, "arguments": {...}}, ...], or [TOOL_CALLS]NAME[ARGS]{...} any
  // number of times, as in Mistral's models.
  kMistral,
  // Messages to functions.NAME, as in gpt-oss (harmony.h).
  kHarmony,
  kPlain,  // {"name": NAME, "arguments": {...}} as the whole answer
};

ToolFormat DetectToolFormat(std::string_view chat_template);

// The text before the arguments of a call.
std::string BeforeArguments(ToolFormat format, const std::string& name);
std::string AfterArguments(ToolFormat format);
// Between two calls; unset where a model makes one call at a time.
std::optional<std::string> CallSeparator(ToolFormat format);

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

// Calls as JSON.
class ToolCallParser final : public CallParser {
 public:
  // `names`: the functions offered. Calls beyond `most` are dropped.
  ToolCallParser(ToolFormat format, std::set<std::string> names, int most);

  void Add(std::string_view piece, std::vector<ToolEvent>* events) override;
  void Finish(std::vector<ToolEvent>* events) override;

 private:
  // A JSON object with a name and arguments, byte by byte.
  class CallScanner {
   public:
    enum Status { kMore, kDone, kFailed };
    Status Add(char c);
    const std::string& name() const { return name_; }
    bool has_name() const { return has_name_; }
    // The end of the object is expected, or another field.
    bool after_value() const { return phase_ == kCommaOrEnd; }
    // Returns the arguments received since the last call.
    std::string TakeArguments();

   private:
    enum Phase { kOpen, kKeyOrEnd, kKey, kColon, kValue, kString, kNested, kBare, kCommaOrEnd };
    bool AddToString(char c);
    bool EndValue();
    bool IsArguments() const { return key_ == "arguments" || key_ == "parameters"; }

    Phase phase_ = kOpen;
    bool escaped_ = false;
    bool in_string_ = false;
    int depth_ = 0;
    std::string key_, value_, name_, arguments_;
    bool has_name_ = false;
    bool has_arguments_ = false;
    bool streamed_ = false;  // arguments are emitted as they are written
  };

  // What every call begins with; "" if calls are the whole answer.
  std::string_view Tag() const;
  void BeginCall(std::string raw);
  // False: more of the answer is needed.
  bool Step(std::vector<ToolEvent>* events, bool last);
  bool Text(std::vector<ToolEvent>* events, bool last);
  // What follows Mistral's tag, up to the arguments.
  bool Header(std::vector<ToolEvent>* events, bool last);
  bool Call(std::vector<ToolEvent>* events, bool last);
  bool After();
  void Say(std::string text, std::vector<ToolEvent>* events);

  ToolFormat format_;
  std::set<std::string> names_;
  enum { kText, kHeader, kCall, kAfter } state_ = kText;
  std::string pending_;  // not emitted so far
  std::string raw_;      // the current call so far
  CallScanner scanner_;
  bool begun_ = false;          // the call's name has been emitted
  bool has_arguments_ = false;  // some of its arguments have been emitted
  bool list_ = false;           // Mistral: the call is an element of a list
  bool bare_ = false;           // Mistral: the name stands before the arguments
  int calls_ = 0;
  int most_;
  bool only_text_ = false;  // the rest is text
};

}  // namespace litecache::server

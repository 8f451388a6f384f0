#include "server/api/harmony.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace litecache::server {
namespace {

constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kConstrain = "<|constrain|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kEnd = "<|end|>";
constexpr std::string_view kReturn = "<|return|>";
constexpr std::string_view kCall = "<|call|>";

// What ends a message's text. Where a model leaves out <|end|>, the next message's header does.
constexpr std::array<std::string_view, 5> kEnds = {kEnd, kReturn, kCall, kStart, kChannel};
// These have no meaning inside a text and are left out.
constexpr std::array<std::string_view, 2> kStray = {kMessage, kConstrain};
constexpr std::array<std::string_view, 5> kHeaderEnds = {kMessage, kEnd, kReturn, kCall, kStart};
// What a header consists of behind the role: a channel, a recipient, the form of the content.
constexpr std::array<std::string_view, 5> kElements = {kChannel, "to=", kConstrain, "json", "code"};
constexpr std::array<std::string_view, 3> kChannels = {"analysis", "commentary", "final"};

constexpr std::string_view kAssistant = "assistant";
constexpr std::string_view kFunctions = "functions.";
constexpr std::string_view kBlanks = " \n\r\t";
constexpr size_t kNowhere = std::string_view::npos;
constexpr size_t kLongestHeader = 512;

// The first of some tags in a text.
struct Found {
  size_t at = kNowhere;
  std::string_view tag;
};

Found FindFirst(std::string_view text, std::span<const std::string_view> tags) {
  Found first;
  for (const std::string_view tag : tags) {
    const size_t at = text.find(tag);
    if (at < first.at) first = {at, tag};
  }
  return first;
}

// Whether the text is the beginning of one of the words.
bool MayBegin(std::string_view text, std::span<const std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return word.starts_with(text); });
}

// How much comes before what may be the beginning of a tag, at the end.
size_t BeforeTags(std::string_view text) {
  const size_t at = text.rfind('<');
  const std::string_view end = text.substr(std::min(at, text.size()));
  return !end.empty() && (MayBegin(end, kEnds) || MayBegin(end, kStray)) ? at : text.size();
}

struct MessageHeader {
  std::string_view channel;
  std::string_view recipient;
  size_t broken = kNowhere;   // where it goes on with what is no header
  size_t strange = kNowhere;  // the first word in the place of a role or channel that is none
};

// What stands before <|message|>. `more`: as far as it is known.
MessageHeader ReadHeader(std::string_view text, bool more) {
  MessageHeader header;
  size_t at = 0;
  const auto skip_space = [&] {
    at = std::min(text.find_first_not_of(kBlanks, at), text.size());
    return at;
  };
  const auto word = [&] {
    const size_t begin = skip_space();
    at = std::min(text.find_first_of(" \n\r\t<", begin), text.size());
    return text.substr(begin, at - begin);
  };
  const auto note = [&](size_t begin, bool known) {
    if (!known) header.strange = std::min(header.strange, begin);
  };
  const size_t role = skip_space();
  if (text.substr(role).starts_with(kAssistant)) {
    at += kAssistant.size();
  } else {
    note(role, kAssistant.starts_with(word()));
  }
  while (skip_space() < text.size()) {
    const std::string_view rest = text.substr(at);
    const auto* const element = std::ranges::find_if(
        kElements, [&](std::string_view one) { return rest.starts_with(one); });
    if (element == kElements.end()) {
      const bool open = more && (MayBegin(rest, kElements) || MayBegin(rest, kHeaderEnds));
      if (!open) header.broken = std::min(at, header.strange);
      return header;
    }
    at += element->size();
    if (*element == "to=") header.recipient = word();
    if (*element == kConstrain) word();
    if (*element != kChannel) continue;
    const size_t begin = skip_space();
    header.channel = word();
    note(begin, MayBegin(header.channel, kChannels));
  }
  return header;
}

// In a grammar.
std::string Control(std::string_view tag) { return grammar::kControl + std::string(tag); }

// Several calls in one message: each with its result behind it, because the template knows a
// result's function by the call before it. Requests may have 100,000 of both.
Json SplitCalls(Json messages) {
  Json split = Json::array();
  for (size_t i = 0; i < messages.size();) {
    Json message = std::move(messages[i++]);
    const Json calls = message.value("tool_calls", Json::array());
    if (calls.size() < 2) {
      split.push_back(std::move(message));
      continue;
    }
    std::unordered_map<std::string, std::vector<Json>> results;  // by the id of their call
    for (const Json& call : calls) {
      if (call.contains("id")) results[call["id"].get<std::string>()];
    }
    std::vector<Json> others;  // results of none of the calls
    while (i < messages.size() && messages[i]["role"] == "tool") {
      Json& result = messages[i++];
      const auto answered = results.find(result.value("tool_call_id", ""));
      (answered == results.end() ? others : answered->second).push_back(std::move(result));
    }
    const auto add = [&](std::vector<Json> some) {
      for (Json& one : some) split.push_back(std::move(one));
    };
    for (const Json& call : calls) {
      message["tool_calls"] = Json::array({call});
      split.push_back(std::exchange(message, {{"role", "assistant"}, {"content", ""}}));
      // A second call of the same id gets none.
      if (call.contains("id")) add(std::exchange(results[call["id"].get<std::string>()], {}));
    }
    add(std::move(others));
  }
  return split;
}

}  // namespace

bool IsHarmony(std::string_view chat_template) {
  return chat_template.find(kChannel) != std::string_view::npos &&
         chat_template.find(kMessage) != std::string_view::npos;
}

void ToHarmonyMessages(Json* messages) {
  const auto text = [](Json& message, const char* name) -> std::string& {
    return message[name].get_ref<std::string&>();
  };
  const auto add = [](std::string* text, const std::string& more) {
    if (!text->empty() && !more.empty()) *text += "\n\n";
    *text += more;
  };
  Json& all = *messages;
  const auto other = std::find_if(all.begin(), all.end(),
                                  [](const Json& message) { return message["role"] != "system"; });
  if (other - all.begin() > 1) {
    for (auto more = all.begin() + 1; more != other; ++more) {
      add(&text(all[0], "content"), text(*more, "content"));
    }
    all.erase(all.begin() + 1, other);
  }
  for (Json& message : all) {
    for (const char* name : {"reasoning_content", "reasoning"}) {
      if (!message.contains(name) || message.contains("thinking")) continue;
      Json thoughts = message[name];  // no reference: the new field may move the others
      message["thinking"] = std::move(thoughts);
    }
    // What was said before a call belongs to the thoughts there, and only one of both is taken.
    if (message.contains("tool_calls") && message.contains("thinking")) {
      add(&text(message, "thinking"), std::exchange(text(message, "content"), ""));
    }
  }
  all = SplitCalls(std::move(all));
}

std::string BegunMessage(std::span<const int32_t> prompt, const tokenizer::Tokenizer& tokenizer) {
  const auto id = [&](std::string_view tag) { return tokenizer.TokenToId(tag).value_or(-1); };
  const auto start = std::find(prompt.rbegin(), prompt.rend(), id(kStart)).base();
  if (start == prompt.begin()) return "";
  const auto message = std::find(start, prompt.end(), id(kMessage));
  for (const std::string_view tag : {kEnd, kReturn, kCall}) {
    if (std::find(start, prompt.end(), id(tag)) != prompt.end()) return "";
  }
  const auto end = message == prompt.end() ? message : message + 1;
  return tokenizer.Decode({start - 1, end}, /*skip_special=*/false);
}

std::string BeforeHarmonyArguments(const std::string& name) {
  return fmt::format("{}commentary to={}{} {}json{}", kChannel, kFunctions, name, kConstrain,
                     kMessage);
}

std::shared_ptr<const TokenConstraint> ConstrainHarmony(
    std::shared_ptr<const TokenConstraint> constraint, const std::string& begun, bool calls,
    const tokenizer::Tokenizer& tokenizer, grammar::GrammarCache* grammars) {
  const bool thinks = HarmonyAnswer(begun, std::nullopt, 0).thinks();
  if (begun.ends_with(kMessage) && !thinks) return constraint;
  for (const std::string_view tag : {kStart, kChannel, kConstrain, kMessage, kEnd}) {
    const auto id = tokenizer.TokenToId(tag);
    if (id && tokenizer.IsSpecial(*id)) continue;
    throw Unsupported(
        "the chat template asks for answers on channels, which cannot have a given format: the "
        "model has no special token {}",
        tag);
  }
  return grammars->AfterReasoning(
      *constraint, {.open = thinks ? "" : Control(kChannel) + "analysis" + Control(kMessage),
                    .close = Control(kEnd) + Control(kStart) + std::string(kAssistant),
                    .answer = calls ? "" : Control(kChannel) + "final" + Control(kMessage)});
}

HarmonyAnswer::HarmonyAnswer(std::string_view begun, std::optional<std::set<std::string>> functions,
                             int most)
    : functions_(std::move(functions)), most_(most) {
  std::vector<ToolEvent> none;
  Add(begun, &none);
}

void HarmonyAnswer::Add(std::string_view piece, std::vector<ToolEvent>* events) {
  pending_ += piece;
  while (Step(events, false)) {
  }
}

void HarmonyAnswer::Finish(std::vector<ToolEvent>* events) {
  while (Step(events, true)) {
  }
}

bool HarmonyAnswer::Step(std::vector<ToolEvent>* events, bool last) {
  switch (state_) {
    case kBetween:
      return Between(last);
    case kHeader:
      return Header(events, last);
    case kContent:
      return Content(events, last);
  }
  return false;
}

void HarmonyAnswer::Begin(ToolEvent::Kind kind) {
  kind_ = kind;
  said_ = false;
  state_ = kContent;
}

void HarmonyAnswer::Say(std::string text, std::vector<ToolEvent>* events) {
  if (text.empty()) return;
  if (kind_ == ToolEvent::kArguments) {
    if (calls_ > most_) return;
  } else if (!said_ && before_.contains(kind_)) {
    text.insert(0, "\n\n");  // messages of one channel
  }
  said_ = true;
  events->push_back({kind_, std::move(text)});
}

// Between two messages.
bool HarmonyAnswer::Between(bool last) {
  pending_.erase(0, std::min(pending_.find_first_not_of(kBlanks), pending_.size()));
  const bool starts = pending_.starts_with(kStart);
  if (starts || pending_.starts_with(kChannel)) {
    if (starts) pending_.erase(0, kStart.size());
    state_ = kHeader;
    return true;
  }
  if (pending_.empty() || (!last && MayBegin(pending_, std::array{kStart, kChannel}))) return false;
  Begin(ToolEvent::kText);
  return true;
}

bool HarmonyAnswer::Header(std::vector<ToolEvent>* events, bool last) {
  const Found end = FindFirst(pending_, kHeaderEnds);
  const std::string_view text = std::string_view(pending_).substr(0, end.at);
  const bool too_long = (end.tag.empty() ? BeforeTags(text) : text.size()) > kLongestHeader;
  const bool more = too_long || (end.tag.empty() && !last);
  MessageHeader header = ReadHeader(text.substr(0, kLongestHeader), more);
  if (header.broken == kNowhere && too_long) {
    const size_t begin = text.starts_with(kChannel) ? kChannel.size() : 0;
    header.broken = header.strange != kNowhere ? header.strange : begin;
  }
  // A word that is no channel is a channel's name only where <|message|> follows.
  if (header.broken == kNowhere && !more && end.tag != kMessage) header.broken = header.strange;
  if (header.broken != kNowhere) {
    pending_.erase(0, header.broken);
    Begin(ToolEvent::kText);
    return true;
  }
  if (end.tag.empty()) {
    if (last) pending_.clear();
    return false;
  }
  if (end.tag != kMessage) {
    pending_.erase(0, end.at);
    Begin(ToolEvent::kText);  // of which there is none
    return true;
  }
  std::string name(header.recipient);
  const bool addressed = name.starts_with(kFunctions);
  if (addressed) name.erase(0, kFunctions.size());
  if (functions_ && !name.empty() && (addressed || functions_->contains(name))) {
    Begin(ToolEvent::kArguments);
    if (++calls_ <= most_) events->push_back({ToolEvent::kBegin, std::move(name)});
  } else {
    Begin(header.channel == kChannels[0] ? ToolEvent::kReasoning : ToolEvent::kText);
  }
  pending_.erase(0, end.at + kMessage.size());
  return true;
}

bool HarmonyAnswer::Content(std::vector<ToolEvent>* events, bool last) {
  const Found end = FindFirst(pending_, kEnds), stray = FindFirst(pending_, kStray);
  const Found first = stray.at < end.at ? stray : end;
  const size_t size = !first.tag.empty() ? first.at : last ? pending_.size() : BeforeTags(pending_);
  Say(pending_.substr(0, size), events);
  // A header that follows is read from its first tag on.
  pending_.erase(0, size + (first.tag == kChannel ? 0 : first.tag.size()));
  if (!stray.tag.empty() && first.at == stray.at) return true;
  if (end.tag.empty() && !last) return false;
  if (kind_ == ToolEvent::kArguments && !said_) Say("{}", events);
  if (said_) before_.insert(kind_);
  state_ = end.tag == kStart || end.tag == kChannel ? kHeader : kBetween;
  return !end.tag.empty();
}

}  // namespace litecache::server

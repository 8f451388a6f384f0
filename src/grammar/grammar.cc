#include "grammar/grammar.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "grammar/characters.h"
#include "grammar/gbnf.h"
#include "grammar/match_cache.h"
#include "grammar/pattern.h"
#include "grammar/schema_compiler.h"

namespace litecache::grammar {
namespace {

// The place of one sample in a grammar.
class GrammarConstraint final : public TokenConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<const Grammar> grammar)
      : grammar_(std::move(grammar)) {
    const std::lock_guard lock(grammar_->mutex());
    cache_ = grammar_->Cache();
    MoveTo(cache_->start());
    if (!open_ && !complete_) {
      throw Unsupported(
          "the grammar has too many readings before the first character: rules that call each "
          "other "
          "are nested too deep, or in too many ways");
    }
  }

  // A walk is not shared: its mask is written.
  GrammarConstraint(const GrammarConstraint& other)
      : grammar_(other.grammar_),
        cache_(other.cache_),
        place_(other.place_),
        complete_(other.complete_),
        open_(other.open_),
        mask_(other.mask_) {}
  GrammarConstraint& operator=(const GrammarConstraint&) = delete;

  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<GrammarConstraint>(*this);
  }

  bool Prepare(int64_t work) override {
    if (mask_ != nullptr) return true;
    const std::lock_guard lock(grammar_->mutex());
    FollowCache();
    mask_ = cache_->FindMask(place_);  // another sample may have been here
    if (mask_ == nullptr) {
      if (!walk_) walk_ = cache_->BeginMask(place_);
      if (!cache_->ContinueMask(&*walk_, work)) return false;
      mask_ = cache_->FindMask(place_);
    }
    walk_.reset();
    return true;
  }

  std::span<const uint32_t> Mask() override {
    // In pieces, because the cache may have to be replaced in between.
    while (!Prepare(kWorkAtOnce)) {
    }
    return *mask_;
  }

  void Accept(int32_t token) override {
    const std::lock_guard lock(grammar_->mutex());
    FollowCache();
    const MatchCache::Place next =
        cache_->Step(place_, std::string_view(grammar_->vocabulary().bytes(token)));
    LC_CHECK(next != MatchCache::kNowhere, "token {} is not what the grammar allows", token);
    MoveTo(next);
  }

  bool Complete() const override { return complete_; }
  bool Finished() const override { return complete_ && !open_; }
  const std::shared_ptr<const Grammar>& grammar() const { return grammar_; }

 private:
  static constexpr int64_t kWorkAtOnce = 100'000;

  void MoveTo(MatchCache::Place place) {
    place_ = place;
    mask_.reset();
    walk_.reset();
    complete_ = cache_->Complete(place);
    open_ = cache_->Open(place);
  }

  void FollowCache() {
    std::shared_ptr<MatchCache> current = grammar_->Cache();
    if (current == cache_) return;
    place_ = current->Import(*cache_, place_);
    if (walk_) walk_ = current->Import(*cache_, *std::move(walk_));
    cache_ = std::move(current);
  }

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<MatchCache> cache_;
  MatchCache::Place place_ = MatchCache::kNowhere;
  bool complete_ = false;
  bool open_ = false;
  std::shared_ptr<const TokenMask> mask_;     // of this place; null: not computed
  std::optional<MatchCache::MaskWalk> walk_;  // while it is being computed
};

std::shared_ptr<Grammar> Finish(AutomatonBuilder* builder, StateId start,
                                std::shared_ptr<const Vocabulary> vocabulary) {
  return std::make_shared<Grammar>(builder->Finish(start), std::move(vocabulary));
}

}  // namespace

Grammar::Grammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary)
    : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)) {}

Grammar::~Grammar() = default;

std::unique_ptr<TokenConstraint> Grammar::NewConstraint() const {
  return std::make_unique<GrammarConstraint>(shared_from_this());
}

std::shared_ptr<const Grammar> Grammar::Of(const TokenConstraint& constraint) {
  const auto* made_here = dynamic_cast<const GrammarConstraint*>(&constraint);
  return made_here != nullptr ? made_here->grammar() : nullptr;
}

std::shared_ptr<MatchCache> Grammar::Cache() const {
  if (cache_ == nullptr || cache_->Full()) {
    cache_ = std::make_shared<MatchCache>(automaton_, *vocabulary_);
  }
  return cache_;
}

std::shared_ptr<Grammar> Grammar::OfSchema(const Json& schema,
                                           std::shared_ptr<const Vocabulary> vocabulary) {
  AutomatonBuilder builder;
  SchemaCompiler compiler(&builder);
  const StateId start = builder.Add(), value = builder.Add(), end = builder.AddEnd();
  builder.Call(start, compiler.LeadingSpace(), value);
  builder.Call(value, compiler.Compile(schema), end);
  return Finish(&builder, start, std::move(vocabulary));
}

std::shared_ptr<Grammar> Grammar::OfObject(std::shared_ptr<const Vocabulary> vocabulary) {
  return OfSchema({{"type", "object"}}, std::move(vocabulary));
}

std::shared_ptr<Grammar> Grammar::OfFrames(const Frames& frames,
                                           std::shared_ptr<const Vocabulary> vocabulary) {
  LC_CHECK(!frames.any.empty());
  AutomatonBuilder builder;
  SchemaCompiler compiler(&builder, frames.form);
  const StateId start = builder.Add(), last = builder.Add();
  const StateId first = builder.Literal(start, frames.before);
  for (const FramedSchema& frame : frames.any) {
    const StateId value = builder.Literal(first, frame.before), after = builder.Add();
    builder.Call(value, compiler.Compile(frame.schema), after);
    builder.Literal(after, frame.after, last);
  }
  if (frames.separator) builder.Literal(last, *frames.separator, first);
  builder.Literal(last, frames.after, builder.AddEnd());
  return Finish(&builder, start, std::move(vocabulary));
}

std::shared_ptr<Grammar> Grammar::OfPattern(std::string_view pattern,
                                            std::shared_ptr<const Vocabulary> vocabulary) {
  AutomatonBuilder builder;
  CharacterWriter writer(&builder, CharacterWriter::kPlain);
  const StateId start = builder.Add();
  writer.All(start, ParsePattern(pattern, true), 0, kUnlimited, builder.AddEnd());
  return Finish(&builder, start, std::move(vocabulary));
}

std::shared_ptr<Grammar> Grammar::OfChoices(const std::set<std::string>& texts,
                                            std::shared_ptr<const Vocabulary> vocabulary) {
  AutomatonBuilder builder;
  const StateId start = builder.Add();
  builder.Literals(start, texts, builder.AddEnd());
  return Finish(&builder, start, std::move(vocabulary));
}

std::shared_ptr<Grammar> Grammar::OfGbnf(std::string_view source,
                                         std::shared_ptr<const Vocabulary> vocabulary) {
  return std::make_shared<Grammar>(CompileGbnf(source), std::move(vocabulary));
}

std::shared_ptr<Grammar> Grammar::AfterReasoning(const Grammar& answer, const ThoughtTags& tags) {
  AutomatonBuilder builder(answer.automaton().states);
  const StateId start = builder.Add(), thinks = builder.Add(), begin = builder.Add();
  StateId behind = builder.Add();
  builder.Literal(begin, tags.answer, answer.automaton().start);
  if (tags.open.empty()) {
    builder.Jump(start, thinks);
  } else {
    builder.Literal(start, tags.open, thinks);
    builder.Jump(start, begin);
  }
  if (tags.close.front() == kControl) {
    builder.Bytes(thinks, 0, 0xFE, thinks);
    builder.Literal(thinks, tags.close, behind);
  } else {
    builder.Through(thinks, tags.close, behind);
  }
  for (int space = 0; space < 2; ++space) {
    builder.Jump(behind, begin);
    const StateId next = builder.Add();
    builder.Byte(behind, ' ', next);
    builder.Byte(behind, '\n', next);
    behind = next;
  }
  builder.Jump(behind, begin);
  return Finish(&builder, start, answer.vocabulary_);
}

}  // namespace litecache::grammar

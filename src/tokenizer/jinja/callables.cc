#include <algorithm>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/evaluator.h"
#include "tokenizer/jinja/value_ops.h"

namespace litecache::tokenizer::jinja {

namespace {

class Macro : public Callable {
 public:
  Macro(Evaluator* evaluator, const MacroBody* body, ScopePtr scope)
      : evaluator_(evaluator), body_(body), scope_(std::move(scope)) {}

  Value Call(Runtime& rt, CallArgs& args) override {
    return evaluator_->CallMacro(*body_, scope_, args);
  }
  std::string Repr() const override {
    return body_->name.empty() ? "<Macro anonymous>" : "<Macro '" + body_->name + "'>";
  }
  std::string TypeName() const override { return "Macro"; }

  std::optional<Value> Attribute(Runtime& rt, const std::string& name) override {
    if (name == "name") return rt.MakeString(body_->name);
    if (name == "arguments") {
      std::vector<Value> names;
      for (const std::string& p : body_->parameters) names.push_back(rt.MakeString(p));
      return rt.MakeList(std::move(names));
    }
    if (name == "caller") return Value::Bool(body_->uses_caller);
    if (name == "catch_kwargs") return Value::Bool(body_->uses_kwargs);
    if (name == "catch_varargs") return Value::Bool(body_->uses_varargs);
    return std::nullopt;
  }

 private:
  Evaluator* evaluator_;
  const MacroBody* body_;
  ScopePtr scope_;
};

std::optional<Value> TakeKeyword(CallArgs* args, const std::string& name) {
  for (auto it = args->keyword.begin(); it != args->keyword.end(); ++it) {
    if (it->first != name) continue;
    Value value = it->second;
    args->keyword.erase(it);
    return value;
  }
  return std::nullopt;
}

}  // namespace

Value MakeMacro(Evaluator* evaluator, const MacroBody* macro, const ScopePtr& scope) {
  // The scope is kept until the end of the run, so its memory is charged.
  evaluator->runtime().Step(200);
  evaluator->runtime().KeepForClearing(scope);
  return Value::Of(Type::kCallable, std::make_shared<Macro>(evaluator, macro, scope));
}

Value Evaluator::CallMacro(const MacroBody& macro, const ScopePtr& scope, CallArgs& args) {
  const size_t count = macro.parameters.size();
  std::vector<std::optional<Value>> values(count);
  const size_t given = std::min(count, args.positional.size());
  for (size_t i = 0; i < given; ++i) values[i] = args.positional[i];
  bool found_caller = false;
  for (size_t i = given; i < count; ++i) {
    values[i] = TakeKeyword(&args, macro.parameters[i]);
    found_caller |= macro.parameters[i] == "caller";
  }
  const bool declares_caller = std::find(macro.parameters.begin(), macro.parameters.end(),
                                         "caller") != macro.parameters.end();
  if (given == count) found_caller = declares_caller;

  auto inner = std::make_shared<Scope>(scope);
  if (macro.uses_caller && !found_caller) {
    const auto caller = TakeKeyword(&args, "caller");
    const bool missing = !caller.has_value() || caller->IsNone();
    inner->variables["caller"] = missing ? Value::Undefined("No caller defined") : *caller;
  }
  if (macro.uses_kwargs) {
    auto kwargs = std::make_shared<Dict>();
    for (auto& [name, value] : args.keyword) kwargs->Set(rt_.MakeString(name), value);
    inner->variables["kwargs"] = rt_.MakeDict(std::move(kwargs));
  } else if (!args.keyword.empty()) {
    rt_.Fail("macro '{}' takes no keyword argument '{}'", macro.name, args.keyword[0].first);
  }
  if (macro.uses_varargs) {
    inner->variables["varargs"] = rt_.MakeTuple(
        {args.positional.begin() + static_cast<std::ptrdiff_t>(given), args.positional.end()});
  } else if (args.positional.size() > count) {
    rt_.Fail("macro '{}' takes not more than {} argument(s)", macro.name, count);
  }

  // Parameters are bound left to right: a default can use those before it.
  const size_t first_default = count - macro.defaults.size();
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    if (!values[i].has_value()) {
      values[i] = i >= first_default
                      ? Eval(*macro.defaults[i - first_default], inner)
                      : Value::Undefined("parameter '" + name + "' was not provided");
    }
    inner->variables[name] = *values[i];
  }
  MarkedString text;
  Run(macro.body, inner, &text);
  return rt_.MakeString(std::move(text));
}

LoopContext::LoopContext(Evaluator* evaluator, const ForStatement* statement, ScopePtr scope,
                         std::shared_ptr<Iterator> items, std::optional<int64_t> length, int depth)
    : evaluator_(evaluator),
      statement_(statement),
      scope_(std::move(scope)),
      items_(std::move(items)),
      length_(length),
      depth_(depth) {}

bool LoopContext::Next(Runtime& rt, Value* item) {
  rt.Step();
  if (after_.has_value()) {
    *item = *after_;
    after_.reset();
  } else if (!items_->Next(rt, item)) {
    return false;
  }
  ++index0_;
  before_ = std::move(current_);
  current_ = *item;
  return true;
}

void LoopContext::Finish() {
  before_.reset();
  current_.reset();
  after_.reset();
  last_changed_.reset();
  items_ = IterateVector({}, "list_iterator");
}

bool LoopContext::Peek(Runtime& rt) {
  if (after_.has_value()) return true;
  Value item;
  if (!items_->Next(rt, &item)) return false;
  after_ = std::move(item);
  return true;
}

int64_t LoopContext::Length(Runtime& rt) {
  if (!length_.has_value()) {
    std::vector<Value> rest;
    Value item;
    while (items_->Next(rt, &item)) rest.push_back(item);
    rt.ChargeItems(static_cast<int64_t>(rest.size()));
    length_ = static_cast<int64_t>(rest.size()) + index0_ + 1 + (after_.has_value() ? 1 : 0);
    items_ = IterateVector(std::move(rest), "list_iterator");
  }
  return *length_;
}

Value LoopContext::Call(Runtime& rt, CallArgs& args) {
  if (!statement_->recursive) {
    rt.Fail("the loop must have the 'recursive' marker to be called recursively");
  }
  if (args.positional.size() != 1 || !args.keyword.empty()) {
    rt.Fail("loop() takes one argument, what to iterate over");
  }
  MarkedString text;
  evaluator_->RunLoop(*statement_, scope_, args.positional[0], depth_ + 1, &text);
  return rt.MakeString(std::move(text));
}

Value LoopContext::Cycle(Runtime& rt, CallArgs& args) const {
  if (args.positional.empty()) rt.Fail("no items for cycling given");
  return args.positional[static_cast<size_t>(index0_) % args.positional.size()];
}

Value LoopContext::Changed(Runtime& rt, CallArgs& args) {
  const auto same = [&] {
    if (!last_changed_ || last_changed_->size() != args.positional.size()) return false;
    for (size_t i = 0; i < last_changed_->size(); ++i) {
      if (!Equal(rt, (*last_changed_)[i], args.positional[i])) return false;
    }
    return true;
  };
  if (same()) return Value::Bool(false);
  last_changed_ = args.positional;
  return Value::Bool(true);
}

std::optional<Value> LoopContext::Attribute(Runtime& rt, const std::string& name) {
  if (name == "index0") return Value::Int(index0_);
  if (name == "index") return Value::Int(index0_ + 1);
  if (name == "first") return Value::Bool(index0_ == 0);
  if (name == "last") return Value::Bool(!Peek(rt));
  if (name == "length") return Value::Int(Length(rt));
  if (name == "revindex") return Value::Int(Length(rt) - index0_);
  if (name == "revindex0") return Value::Int(Length(rt) - index0_ - 1);
  if (name == "depth0") return Value::Int(depth_);
  if (name == "depth") return Value::Int(depth_ + 1);
  if (name == "previtem") {
    return before_.has_value() ? *before_ : Value::Undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return Peek(rt) ? *after_ : Value::Undefined("there is no next item");
  }
  if (name == "cycle" || name == "changed") {
    const bool cycle = name == "cycle";
    return MakeFunction(name, [self = shared_from_this(), cycle](Runtime& rt, CallArgs& args) {
      return cycle ? self->Cycle(rt, args) : self->Changed(rt, args);
    });
  }
  return std::nullopt;
}

}  // namespace litecache::tokenizer::jinja

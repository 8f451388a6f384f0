#include "tokenizer/jinja/evaluator.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

const Value* Scope::Find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    auto found = scope->variables.find(name);
    if (found != scope->variables.end()) return &found->second;
  }
  return nullptr;
}

void Evaluator::Print(const Value& value, MarkedString* out) {
  const size_t before = out->size();
  AppendStr(rt_, value, out);
  rt_.ChargeBytes(out->size() - before);
  if (out->size() > static_cast<size_t>(rt_.limits().string_bytes)) rt_.ChargeBytes(out->size());
}

Flow Evaluator::Run(const Block& block, const ScopePtr& scope, MarkedString* out) {
  for (const Statement* statement : block) {
    const Flow flow = RunStatement(*statement, scope, out);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Flow Evaluator::RunStatement(const Statement& statement, const ScopePtr& scope, MarkedString* out) {
  rt_.Step();
  rt_.set_line(statement.line);
  Runtime::DepthGuard guard(&rt_);
  switch (statement.kind) {
    case StatementKind::kOutput: {
      const auto& output = static_cast<const OutputStatement&>(statement);
      if (output.expr != nullptr) {
        Print(Eval(*output.expr, scope), out);
      } else {
        rt_.ChargeBytes(output.text.size());
        out->Append(output.text);
      }
      return Flow::kNext;
    }
    case StatementKind::kFor: {
      const auto& loop = static_cast<const ForStatement&>(statement);
      return RunLoop(loop, scope, Eval(*loop.iterable, scope), 0, out);
    }
    case StatementKind::kIf: {
      const auto& branches = static_cast<const IfStatement&>(statement);
      for (const auto& [condition, body] : branches.branches) {
        if (Truthy(Eval(*condition, scope))) return Run(body, scope, out);
      }
      return Run(branches.otherwise, scope, out);
    }
    case StatementKind::kSet: {
      const auto& set = static_cast<const SetStatement&>(statement);
      Assign(*set.target, Eval(*set.value, scope), scope.get());
      return Flow::kNext;
    }
    case StatementKind::kSetBlock: {
      const auto& set = static_cast<const SetBlockStatement&>(statement);
      auto inner = std::make_shared<Scope>(scope);
      MarkedString text;
      const Flow flow = Run(set.body, inner, &text);
      if (flow != Flow::kNext) return flow;
      Value value = rt_.MakeString(std::move(text));
      if (set.filter != nullptr) value = EvalFilter(*set.filter, inner, &value);
      Assign(*set.target, value, scope.get());
      return Flow::kNext;
    }
    case StatementKind::kMacro: {
      const auto& macro = static_cast<const MacroStatement&>(statement).macro;
      scope->variables[macro.name] = MakeMacro(this, &macro, scope);
      return Flow::kNext;
    }
    case StatementKind::kCallBlock:
      RunCallBlock(static_cast<const CallBlockStatement&>(statement), scope, out);
      return Flow::kNext;
    case StatementKind::kFilterBlock: {
      const auto& block = static_cast<const FilterBlockStatement&>(statement);
      auto inner = std::make_shared<Scope>(scope);
      MarkedString text;
      const Flow flow = Run(block.body, inner, &text);
      if (flow != Flow::kNext) return flow;
      const Value value = rt_.MakeString(std::move(text));
      Print(EvalFilter(*block.filter, inner, &value), out);
      return Flow::kNext;
    }
    case StatementKind::kWith: {
      const auto& with = static_cast<const WithStatement&>(statement);
      auto inner = std::make_shared<Scope>(scope);
      for (const auto& [target, value] : with.assignments) {
        Assign(*target, Eval(*value, scope), inner.get());
      }
      return Run(with.body, inner, out);
    }
    case StatementKind::kGeneration: {
      const auto& generation = static_cast<const GenerationStatement&>(statement);
      return Run(generation.body, std::make_shared<Scope>(scope), out);
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Evaluator::RunCallBlock(const CallBlockStatement& statement, const ScopePtr& scope,
                             MarkedString* out) {
  const Value caller = MakeMacro(this, &statement.caller, scope);
  Print(EvalCall(*statement.call, scope, &caller), out);
}

void Evaluator::Assign(const Target& target, const Value& value, Scope* scope) {
  rt_.Step();
  if (target.is_tuple) {
    if (!IsIterable(value)) rt_.Fail("cannot unpack non-iterable {} object", TypeName(value));
    const std::vector<Value> items = ToVector(rt_, value);
    if (items.size() != target.targets.size()) {
      rt_.Fail("{} values to unpack (expected {}, got {})",
               items.size() > target.targets.size() ? "too many" : "not enough",
               target.targets.size(), items.size());
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(*target.targets[i], items[i], scope);
    return;
  }
  if (target.attribute.empty()) {
    scope->variables[target.name] = value;
    return;
  }
  const Value* object = scope->Find(target.name);
  if (object == nullptr || !object->Is(Type::kNamespace)) {
    rt_.Fail("cannot assign attribute '{}' of '{}', which is not a namespace", target.attribute,
             target.name);
  }
  if (target.attribute.starts_with('_')) {
    rt_.Fail("a namespace cannot have the attribute '{}': it starts with an underscore",
             target.attribute);
  }
  object->As<NamespaceObject>().attributes.Set(Value::String(target.attribute), value);
}

Flow Evaluator::RunLoop(const ForStatement& loop, const ScopePtr& scope, const Value& iterable,
                        int depth, MarkedString* out) {
  std::shared_ptr<Iterator> items = Iterate(rt_, iterable);
  std::optional<int64_t> length = Length(iterable);
  if (loop.filter != nullptr) {
    length.reset();
    items = MakeGenerator([this, &loop, scope, source = items](Runtime& rt, Value* item) {
      while (source->Next(rt, item)) {
        auto inner = std::make_shared<Scope>(scope);
        Assign(*loop.target, *item, inner.get());
        if (Truthy(Eval(*loop.filter, inner))) return true;
      }
      return false;
    });
  }
  auto context = std::make_shared<LoopContext>(this, &loop, scope, items, length, depth);
  const Value context_value = Value::Of(Type::kCallable, context);
  // A loop may refer to itself, for example through loop.changed(loop): its items are dropped
  // however it ends.
  struct Finish {
    LoopContext* context;
    ~Finish() { context->Finish(); }
  } finish{context.get()};
  bool empty = true;
  Value item;
  while (context->Next(rt_, &item)) {
    auto inner = std::make_shared<Scope>(scope);
    inner->variables.emplace("loop", context_value);
    Assign(*loop.target, item, inner.get());
    const Flow flow = Run(loop.body, inner, out);
    // As in Jinja's compiled code, where the end of the body clears the flag and a break skips
    // that.
    if (flow == Flow::kNext) empty = false;
    if (flow == Flow::kBreak) break;
  }
  if (empty) return Run(loop.otherwise, std::make_shared<Scope>(scope), out);
  return Flow::kNext;
}

}  // namespace litecache::tokenizer::jinja

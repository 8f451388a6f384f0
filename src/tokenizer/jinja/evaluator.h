// Walks the syntax tree: statements in statements.cc, expressions in expressions.cc, macros and
// loops as values in callables.cc.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer::jinja {

// Variables of a template, loop iteration, macro call or block. Lookups go outward through parents.
struct Scope : Runtime::Clearable {
  explicit Scope(std::shared_ptr<Scope> p) : parent(std::move(p)) {}
  void Clear() override { variables.clear(); }
  const Value* Find(const std::string& name) const;

  std::shared_ptr<Scope> parent;
  std::unordered_map<std::string, Value> variables;
};
using ScopePtr = std::shared_ptr<Scope>;

enum class Flow { kNext, kBreak, kContinue };

class Evaluator {
 public:
  explicit Evaluator(Runtime* rt) : rt_(*rt) {}

  Runtime& runtime() { return rt_; }

  // Runs `block` and appends its output to `out`.
  Flow Run(const Block& block, const ScopePtr& scope, MarkedString* out);
  Value Eval(const Expr& expr, const ScopePtr& scope);

  // Binds the arguments and renders the body of a macro or call block defined in `scope`.
  Value CallMacro(const MacroBody& macro, const ScopePtr& scope, CallArgs& args);
  // Runs a loop over `iterable`; `depth` counts recursive loops from 0.
  Flow RunLoop(const ForStatement& loop, const ScopePtr& scope, const Value& iterable, int depth,
               MarkedString* out);

  void Assign(const Target& target, const Value& value, Scope* scope);

 private:
  Flow RunStatement(const Statement& statement, const ScopePtr& scope, MarkedString* out);
  void RunCallBlock(const CallBlockStatement& statement, const ScopePtr& scope, MarkedString* out);
  void Print(const Value& value, MarkedString* out);

  CallArgs EvalArguments(const Arguments& arguments, const ScopePtr& scope);
  Value EvalCall(const CallExpr& call, const ScopePtr& scope, const Value* caller);
  Value EvalFilter(const Expr& expr, const ScopePtr& scope, const Value* block_text);
  Value EvalConcat(const ConcatExpr& expr, const ScopePtr& scope);
  bool EvalCompare(const CompareExpr& expr, const ScopePtr& scope);
  Value EvalDict(const DictExpr& expr, const ScopePtr& scope);
  Value EvalName(const NameExpr& expr, const Scope& scope);
  std::vector<Value> EvalAll(const std::vector<Expr*>& exprs, const ScopePtr& scope);

  Runtime& rt_;
};

// A macro as a value; `scope` is where it was defined.
Value MakeMacro(Evaluator* evaluator, const MacroBody* macro, const ScopePtr& scope);

// The `loop` variable of one run of a for loop; it fetches the items.
class LoopContext : public Callable, public std::enable_shared_from_this<LoopContext> {
 public:
  LoopContext(Evaluator* evaluator, const ForStatement* statement, ScopePtr scope,
              std::shared_ptr<Iterator> items, std::optional<int64_t> length, int depth);

  // Advances to the next item, or returns false at the end.
  bool Next(Runtime& rt, Value* item);
  // Drops all items, for the end of the loop.
  void Finish();

  Value Call(Runtime& rt, CallArgs& args) override;
  std::optional<Value> Attribute(Runtime& rt, const std::string& name) override;
  std::string Repr() const override { return "<LoopContext>"; }
  std::string TypeName() const override { return "LoopContext"; }

 private:
  int64_t Length(Runtime& rt);
  bool Peek(Runtime& rt);
  Value Cycle(Runtime& rt, CallArgs& args) const;
  Value Changed(Runtime& rt, CallArgs& args);

  Evaluator* evaluator_;
  const ForStatement* statement_;
  ScopePtr scope_;
  std::shared_ptr<Iterator> items_;
  std::optional<int64_t> length_;
  int depth_;
  int64_t index0_ = -1;
  std::optional<Value> before_, current_, after_;
  std::optional<std::vector<Value>> last_changed_;
};

}  // namespace litecache::tokenizer::jinja

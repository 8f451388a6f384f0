#include <algorithm>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/evaluator.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

Value Evaluator::Eval(const Expr& expr, const ScopePtr& scope) {
  rt_.Step();
  rt_.set_line(expr.line);
  Runtime::DepthGuard guard(&rt_);
  switch (expr.kind) {
    case ExprKind::kConst:
      return static_cast<const ConstExpr&>(expr).value;
    case ExprKind::kName:
      return EvalName(static_cast<const NameExpr&>(expr), *scope);
    case ExprKind::kList:
      return rt_.MakeList(EvalAll(static_cast<const ListExpr&>(expr).items, scope));
    case ExprKind::kTuple:
      return rt_.MakeTuple(EvalAll(static_cast<const TupleExpr&>(expr).items, scope));
    case ExprKind::kDict:
      return EvalDict(static_cast<const DictExpr&>(expr), scope);
    case ExprKind::kAttribute: {
      const auto& attribute = static_cast<const AttributeExpr&>(expr);
      return GetAttribute(rt_, Eval(*attribute.object, scope), attribute.name);
    }
    case ExprKind::kItem: {
      const auto& item = static_cast<const ItemExpr&>(expr);
      const Value object = Eval(*item.object, scope);
      return GetItem(rt_, object, Eval(*item.key, scope));
    }
    case ExprKind::kSlice: {
      const auto& slice = static_cast<const SliceExpr&>(expr);
      const Value object = Eval(*slice.object, scope);
      const auto bound = [&](const Expr* e) {
        return e == nullptr ? Value::None() : Eval(*e, scope);
      };
      const Value start = bound(slice.start);
      const Value stop = bound(slice.stop);
      return Slice(rt_, object, start, stop, bound(slice.step));
    }
    case ExprKind::kCall:
      return EvalCall(static_cast<const CallExpr&>(expr), scope, nullptr);
    case ExprKind::kFilter:
      return EvalFilter(expr, scope, nullptr);
    case ExprKind::kTest: {
      const auto& test = static_cast<const TestExpr&>(expr);
      const Value input = Eval(*test.input, scope);
      CallArgs args = EvalArguments(test.arguments, scope);
      rt_.set_line(expr.line);
      return Value::Bool(ApplyTest(rt_, test.name, input, args));
    }
    case ExprKind::kNot:
      return Value::Bool(!Truthy(Eval(*static_cast<const NotExpr&>(expr).operand, scope)));
    case ExprKind::kNegate:
      return Negate(rt_, Eval(*static_cast<const NegateExpr&>(expr).operand, scope));
    case ExprKind::kPositive:
      return Positive(rt_, Eval(*static_cast<const PositiveExpr&>(expr).operand, scope));
    case ExprKind::kAnd: {
      const auto& both = static_cast<const AndExpr&>(expr);
      Value left = Eval(*both.left, scope);
      return Truthy(left) ? Eval(*both.right, scope) : left;
    }
    case ExprKind::kOr: {
      const auto& either = static_cast<const OrExpr&>(expr);
      Value left = Eval(*either.left, scope);
      return Truthy(left) ? left : Eval(*either.right, scope);
    }
    case ExprKind::kArithmetic: {
      const auto& binary = static_cast<const ArithmeticExpr&>(expr);
      const Value left = Eval(*binary.left, scope);
      const Value right = Eval(*binary.right, scope);
      rt_.set_line(expr.line);
      return Arithmetic(rt_, binary.op, left, right);
    }
    case ExprKind::kConcat:
      return EvalConcat(static_cast<const ConcatExpr&>(expr), scope);
    case ExprKind::kCompare:
      return Value::Bool(EvalCompare(static_cast<const CompareExpr&>(expr), scope));
    case ExprKind::kConditional: {
      const auto& conditional = static_cast<const ConditionalExpr&>(expr);
      if (Truthy(Eval(*conditional.condition, scope))) return Eval(*conditional.then, scope);
      if (conditional.otherwise != nullptr) return Eval(*conditional.otherwise, scope);
      return Value::Undefined(
          fmt::format("the inline if-expression on line {} evaluated to false and no else section "
                      "was defined",
                      expr.line));
    }
  }
  rt_.Fail("expression of unknown kind");
}

std::vector<Value> Evaluator::EvalAll(const std::vector<Expr*>& exprs, const ScopePtr& scope) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const Expr* expr : exprs) values.push_back(Eval(*expr, scope));
  return values;
}

Value Evaluator::EvalName(const NameExpr& expr, const Scope& scope) {
  if (const Value* found = scope.Find(expr.name)) return *found;
  return Value::Undefined("'" + expr.name + "' is undefined");
}

Value Evaluator::EvalDict(const DictExpr& expr, const ScopePtr& scope) {
  auto dict = std::make_shared<Dict>();
  for (const auto& [key_expr, value_expr] : expr.items) {
    const Value key = Eval(*key_expr, scope);
    const Value value = Eval(*value_expr, scope);
    rt_.SetEntry(dict.get(), key, value);
  }
  return rt_.MakeDict(std::move(dict));
}

Value Evaluator::EvalConcat(const ConcatExpr& expr, const ScopePtr& scope) {
  const std::vector<Value> parts = EvalAll(expr.parts, scope);
  MarkedString text;
  for (const Value& part : parts) AppendStr(rt_, part, &text);
  return rt_.MakeString(std::move(text));
}

bool Evaluator::EvalCompare(const CompareExpr& expr, const ScopePtr& scope) {
  Value left = Eval(*expr.first, scope);
  for (const auto& [op, right_expr] : expr.rest) {
    const Value right = Eval(*right_expr, scope);
    rt_.set_line(expr.line);
    if (!Compare(rt_, op, left, right)) return false;
    left = right;
  }
  return true;
}

CallArgs Evaluator::EvalArguments(const Arguments& arguments, const ScopePtr& scope) {
  CallArgs args;
  args.positional = EvalAll(arguments.positional, scope);
  if (arguments.star != nullptr) {
    const std::vector<Value> more = ToVector(rt_, Eval(*arguments.star, scope));
    args.positional.insert(args.positional.end(), more.begin(), more.end());
  }
  for (const auto& [name, expr] : arguments.keyword)
    args.keyword.emplace_back(name, Eval(*expr, scope));
  if (arguments.double_star != nullptr) {
    const Value more = Eval(*arguments.double_star, scope);
    if (!more.Is(Type::kDict))
      rt_.Fail("argument after ** must be a mapping, not {}", TypeName(more));
    for (const auto& [key, value] : more.As<Dict>().entries()) {
      if (!key.IsString()) rt_.Fail("keywords must be strings");
      for (const auto& [other, unused] : args.keyword) {
        if (other == key.text()) rt_.Fail("multiple values for keyword argument '{}'", other);
      }
      args.keyword.emplace_back(key.text(), value);
    }
  }
  return args;
}

Value Evaluator::EvalCall(const CallExpr& call, const ScopePtr& scope, const Value* caller) {
  const Value callee = Eval(*call.callee, scope);
  CallArgs args = EvalArguments(call.arguments, scope);
  if (caller != nullptr) args.keyword.emplace_back("caller", *caller);
  rt_.set_line(call.line);
  RequireDefined(rt_, callee);
  if (!callee.Is(Type::kCallable)) rt_.Fail("'{}' object is not callable", TypeName(callee));
  return callee.As<Callable>().Call(rt_, args);
}

Value Evaluator::EvalFilter(const Expr& expr, const ScopePtr& scope, const Value* block_text) {
  rt_.Step();
  Runtime::DepthGuard guard(&rt_);
  const auto& filter = static_cast<const FilterExpr&>(expr);
  Value input;
  if (filter.input == nullptr) {
    LC_CHECK(block_text != nullptr, "a filter without an input stands at a block's head only");
    input = *block_text;
  } else if (block_text != nullptr) {
    input = EvalFilter(*filter.input, scope, block_text);
  } else {
    input = Eval(*filter.input, scope);
  }
  CallArgs args = EvalArguments(filter.arguments, scope);
  rt_.set_line(expr.line);
  return ApplyFilter(rt_, filter.name, input, args);
}

}  // namespace litecache::tokenizer::jinja

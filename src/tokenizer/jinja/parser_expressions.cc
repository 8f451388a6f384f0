// Operators by their precedence, and operands.
#include <algorithm>

#include "tokenizer/jinja/parser.h"

namespace litecache::tokenizer::jinja {

Expr* Parser::Constant(int line, Value value) {
  auto* expr = arena_->New<ConstExpr>(line);
  expr->value = std::move(value);
  return expr;
}

template <typename T>
Expr* Parser::Binary(int line, Expr* left, Expr* right) {
  T* expr = arena_->New<T>(line);
  expr->left = left;
  expr->right = right;
  return expr;
}

Expr* Parser::MakeArithmetic(int line, Op op, Expr* left, Expr* right) {
  auto* expr = static_cast<ArithmeticExpr*>(Binary<ArithmeticExpr>(line, left, right));
  expr->op = op;
  return expr;
}

// One expression, or a tuple of several separated by commas. `end_name` is a name that may follow a
// trailing comma.
Expr* Parser::ParseTuple(bool with_conditional, std::string_view end_name, bool parenthesized) {
  const int line = Current().line;
  std::vector<Expr*> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) ExpectOperator(",");
    const TokenType type = Current().type;
    const bool end = type == TokenType::kVariableEnd || type == TokenType::kBlockEnd ||
                     AtOperator(")") || (!end_name.empty() && AtName(end_name));
    if (end) break;
    items.push_back(with_conditional ? ParseConditional() : ParseOr());
    if (!AtOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return items[0];
    if (!parenthesized) Fail("expected an expression, got " + Describe(Current()));
  }
  auto* tuple = arena_->New<TupleExpr>(line);
  tuple->items = std::move(items);
  return tuple;
}

Expr* Parser::ParseConditional() {
  NestingGuard guard(this);
  const size_t unknown = unknown_.size();
  Expr* expr = ParseOr();
  while (AtName("if")) {
    const int line = Take().line;
    auto* conditional = arena_->New<ConditionalExpr>(line);
    conditional->then = expr;
    conditional->condition = ParseOr();
    if (SkipName("else")) conditional->otherwise = ParseConditional();
    expr = conditional;
    unknown_.resize(unknown);
  }
  return expr;
}

Expr* Parser::ParseOr() {
  Expr* left = ParseAnd();
  while (AtName("or")) {
    const int line = Take().line;
    left = Binary<OrExpr>(line, left, ParseAnd());
  }
  return left;
}

Expr* Parser::ParseAnd() {
  Expr* left = ParseNot();
  while (AtName("and")) {
    const int line = Take().line;
    left = Binary<AndExpr>(line, left, ParseNot());
  }
  return left;
}

Expr* Parser::ParseNot() {
  if (!AtName("not")) return ParseCompare();
  NestingGuard guard(this);
  auto* expr = arena_->New<NotExpr>(Take().line);
  expr->operand = ParseNot();
  return expr;
}

Expr* Parser::ParseCompare() {
  struct Symbol {
    std::string_view text;
    Op op;
  };
  constexpr Symbol kSymbols[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                 {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
  const int line = Current().line;
  Expr* first = ParseSum();
  std::vector<std::pair<Op, Expr*>> rest;
  while (true) {
    const auto symbol = std::find_if(std::begin(kSymbols), std::end(kSymbols),
                                     [&](const Symbol& s) { return AtOperator(s.text); });
    if (symbol != std::end(kSymbols)) {
      Take();
      rest.emplace_back(symbol->op, ParseSum());
    } else if (SkipName("in")) {
      rest.emplace_back(Op::kIn, ParseSum());
    } else if (AtName("not") && Ahead().type == TokenType::kName && Ahead().text == "in") {
      Take();
      Take();
      rest.emplace_back(Op::kNotIn, ParseSum());
    } else {
      break;
    }
  }
  if (rest.empty()) return first;
  auto* compare = arena_->New<CompareExpr>(line);
  compare->first = first;
  compare->rest = std::move(rest);
  return compare;
}

Expr* Parser::ParseSum() {
  Expr* left = ParseConcat();
  while (AtOperator("+") || AtOperator("-")) {
    const Token op = Take();
    left = MakeArithmetic(op.line, op.text == "+" ? Op::kAdd : Op::kSub, left, ParseConcat());
  }
  return left;
}

Expr* Parser::ParseConcat() {
  const int line = Current().line;
  Expr* first = ParseProduct();
  if (!AtOperator("~")) return first;
  auto* concat = arena_->New<ConcatExpr>(line);
  concat->parts.push_back(first);
  while (SkipOperator("~")) concat->parts.push_back(ParseProduct());
  return concat;
}

Expr* Parser::ParseProduct() {
  Expr* left = ParsePower();
  while (true) {
    const Op op = AtOperator("*")    ? Op::kMul
                  : AtOperator("/")  ? Op::kDiv
                  : AtOperator("//") ? Op::kFloorDiv
                  : AtOperator("%")  ? Op::kMod
                                     : Op::kEq;
    if (op == Op::kEq) return left;
    const int line = Take().line;
    left = MakeArithmetic(line, op, left, ParsePower());
  }
}

// Left-associative: Jinja compiles 2**3**2 into ((2 ** 3) ** 2).
Expr* Parser::ParsePower() {
  Expr* left = ParseUnary(true);
  while (AtOperator("**")) {
    const int line = Take().line;
    left = MakeArithmetic(line, Op::kPow, left, ParseUnary(true));
  }
  return left;
}

Expr* Parser::ParseUnary(bool with_filter) {
  Expr* expr = nullptr;
  if (AtOperator("-") || AtOperator("+")) {
    NestingGuard guard(this);
    const Token op = Take();
    if (op.text == "-") {
      auto* negate = arena_->New<NegateExpr>(op.line);
      negate->operand = ParseUnary(false);
      expr = negate;
    } else {
      auto* positive = arena_->New<PositiveExpr>(op.line);
      positive->operand = ParseUnary(false);
      expr = positive;
    }
  } else {
    expr = ParsePrimary();
  }
  expr = ParsePostfix(expr);
  return with_filter ? ParseFilterExpr(expr) : expr;
}

Expr* Parser::ParsePrimary() {
  const Token token = Current();
  switch (token.type) {
    case TokenType::kName: {
      Take();
      const std::string& name = token.text;
      if (name == "true" || name == "True") return Constant(token.line, Value::Bool(true));
      if (name == "false" || name == "False") return Constant(token.line, Value::Bool(false));
      if (name == "none" || name == "None") return Constant(token.line, Value::None());
      for (MacroBody* macro : open_macros_) {
        macro->uses_caller |= name == "caller";
        macro->uses_varargs |= name == "varargs";
        macro->uses_kwargs |= name == "kwargs";
      }
      auto* expr = arena_->New<NameExpr>(token.line);
      expr->name = name;
      return expr;
    }
    case TokenType::kString: {
      std::string text = Take().text;
      while (Current().type == TokenType::kString) text += Take().text;
      return Constant(token.line, Value::String(std::move(text)));
    }
    case TokenType::kInteger:
      Take();
      return Constant(token.line, Value::Int(token.integer));
    case TokenType::kFloat:
      Take();
      return Constant(token.line, Value::Float(token.number));
    default:
      break;
  }
  if (SkipOperator("(")) {
    Expr* expr = ParseTuple(true, "", true);
    ExpectOperator(")");
    return expr;
  }
  if (AtOperator("[")) return ParseListLiteral();
  if (AtOperator("{")) return ParseDictLiteral();
  Fail("unexpected " + Describe(token));
}

Expr* Parser::ParseListLiteral() {
  auto* list = arena_->New<ListExpr>(Take().line);
  while (!AtOperator("]")) {
    if (!list->items.empty()) ExpectOperator(",");
    if (AtOperator("]")) break;
    list->items.push_back(ParseExpression());
  }
  ExpectOperator("]");
  return list;
}

Expr* Parser::ParseDictLiteral() {
  auto* dict = arena_->New<DictExpr>(Take().line);
  while (!AtOperator("}")) {
    if (!dict->items.empty()) ExpectOperator(",");
    if (AtOperator("}")) break;
    Expr* key = ParseExpression();
    ExpectOperator(":");
    dict->items.emplace_back(key, ParseExpression());
  }
  ExpectOperator("}");
  return dict;
}

}  // namespace litecache::tokenizer::jinja

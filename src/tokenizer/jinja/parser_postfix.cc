// What follows an operand: subscripts, calls, filters and tests.
#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/parser.h"

namespace litecache::tokenizer::jinja {

Expr* Parser::ParsePostfix(Expr* expr) {
  while (true) {
    if (AtOperator(".") || AtOperator("[")) {
      expr = ParseSubscript(expr);
    } else if (AtOperator("(")) {
      expr = ParseCall(expr);
    } else {
      return expr;
    }
  }
}

Expr* Parser::ParseFilterExpr(Expr* expr) {
  while (true) {
    if (AtOperator("|")) {
      expr = ParseFilter(expr, false);
    } else if (AtName("is")) {
      expr = ParseTest(expr);
    } else if (AtOperator("(")) {
      expr = ParseCall(expr);
    } else {
      return expr;
    }
  }
}

Expr* Parser::ParseSubscript(Expr* object) {
  const Token token = Take();
  if (token.text == ".") {
    const Token name = Take();
    if (name.type == TokenType::kName) {
      auto* attribute = arena_->New<AttributeExpr>(token.line);
      attribute->object = object;
      attribute->name = name.text;
      return attribute;
    }
    if (name.type != TokenType::kInteger) {
      FailAt(name.line, "expected a name or number after '.', got " + Describe(name));
    }
    auto* item = arena_->New<ItemExpr>(token.line);
    item->object = object;
    item->key = Constant(name.line, Value::Int(name.integer));
    return item;
  }
  const auto at_end = [&] { return AtOperator("]") || AtOperator(","); };
  Expr* first = AtOperator(":") || AtOperator("]") ? nullptr : ParseExpression();
  if (AtOperator(":")) {
    auto* slice = arena_->New<SliceExpr>(token.line);
    slice->object = object;
    slice->start = first;
    Take();
    if (!AtOperator(":") && !at_end()) slice->stop = ParseExpression();
    if (SkipOperator(":") && !at_end()) slice->step = ParseExpression();
    if (AtOperator(",")) {
      FailUnsupported(token.line, "a slice with a comma in the subscript is not supported");
    }
    ExpectOperator("]");
    return slice;
  }
  auto* item = arena_->New<ItemExpr>(token.line);
  item->object = object;
  item->key = first;
  if (first == nullptr || AtOperator(",")) {
    auto* tuple = arena_->New<TupleExpr>(token.line);
    if (first != nullptr) tuple->items.push_back(first);
    while (SkipOperator(",")) tuple->items.push_back(ParseExpression());
    item->key = tuple;
  }
  ExpectOperator("]");
  return item;
}

Expr* Parser::ParseCall(Expr* callee) {
  auto* call = arena_->New<CallExpr>(Current().line);
  call->callee = callee;
  call->arguments = ParseArguments();
  return call;
}

Arguments Parser::ParseArguments() {
  const int line = Current().line;
  ExpectOperator("(");
  Arguments arguments;
  const auto ensure = [&](bool valid) {
    if (!valid) FailAt(line, "arguments of a call are in the wrong order");
  };
  bool first = true;
  while (!AtOperator(")")) {
    if (!first) {
      ExpectOperator(",");
      if (AtOperator(")")) break;
    }
    first = false;
    if (SkipOperator("*")) {
      ensure(arguments.star == nullptr && arguments.double_star == nullptr);
      arguments.star = ParseExpression();
    } else if (SkipOperator("**")) {
      ensure(arguments.double_star == nullptr);
      arguments.double_star = ParseExpression();
    } else if (Current().type == TokenType::kName && Ahead().type == TokenType::kOperator &&
               Ahead().text == "=") {
      ensure(arguments.double_star == nullptr);
      std::string name = Take().text;
      Take();
      for (const auto& [other, value] : arguments.keyword) {
        if (other == name) FailAt(line, "keyword argument repeated: " + name);
      }
      arguments.keyword.emplace_back(std::move(name), ParseExpression());
    } else {
      ensure(arguments.star == nullptr && arguments.double_star == nullptr &&
             arguments.keyword.empty());
      arguments.positional.push_back(ParseExpression());
    }
  }
  ExpectOperator(")");
  return arguments;
}

Expr* Parser::ParseFilter(Expr* input, bool first_without_pipe) {
  bool start = first_without_pipe;
  while (start || AtOperator("|")) {
    if (!start) Take();
    start = false;
    auto* filter = arena_->New<FilterExpr>(Current().line);
    filter->input = input;
    filter->name = ExpectName();
    while (SkipOperator(".")) filter->name += "." + ExpectName();
    if (AtOperator("(")) filter->arguments = ParseArguments();
    if (FindFilter(filter->name) == nullptr) unknown_.push_back({true, filter->name, filter->line});
    input = filter;
  }
  return input;
}

Expr* Parser::ParseTest(Expr* input) {
  const int line = Take().line;
  const bool negated = SkipName("not");
  auto* test = arena_->New<TestExpr>(line);
  test->input = input;
  test->name = ExpectName();
  while (SkipOperator(".")) test->name += "." + ExpectName();
  const TokenType type = Current().type;
  if (AtOperator("(")) {
    test->arguments = ParseArguments();
  } else if (AtName("is")) {
    Fail("tests cannot be chained with 'is'");
  } else if ((type == TokenType::kName && !AtName("else") && !AtName("or") && !AtName("and")) ||
             type == TokenType::kString || type == TokenType::kInteger ||
             type == TokenType::kFloat || AtOperator("[") || AtOperator("{")) {
    test->arguments.positional.push_back(ParsePostfix(ParsePrimary()));
  }
  if (FindTest(test->name) == nullptr) unknown_.push_back({false, test->name, line});
  if (!negated) return test;
  auto* negation = arena_->New<NotExpr>(line);
  negation->operand = test;
  return negation;
}

}  // namespace litecache::tokenizer::jinja

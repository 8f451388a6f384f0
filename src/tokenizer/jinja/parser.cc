#include "tokenizer/jinja/parser.h"

#include <algorithm>

#include "tokenizer/jinja/builtins.h"

namespace litecache::tokenizer::jinja {

Token Parser::Take() {
  Token token = Current();
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool Parser::AtOperator(std::string_view op) const {
  return Current().type == TokenType::kOperator && Current().text == op;
}

bool Parser::AtName(std::string_view name) const {
  return Current().type == TokenType::kName && Current().text == name;
}

bool Parser::SkipOperator(std::string_view op) {
  if (!AtOperator(op)) return false;
  Take();
  return true;
}

bool Parser::SkipName(std::string_view name) {
  if (!AtName(name)) return false;
  Take();
  return true;
}

void Parser::ExpectOperator(std::string_view op) {
  if (!SkipOperator(op)) {
    Fail(fmt::format("expected '{}', got {}", op, Describe(Current())));
  }
}

void Parser::ExpectType(TokenType type, std::string_view what) {
  if (Current().type != type) Fail(fmt::format("expected {}, got {}", what, Describe(Current())));
  Take();
}

std::string Parser::ExpectName() {
  if (Current().type != TokenType::kName) {
    Fail("expected a name, got " + Describe(Current()));
  }
  return Take().text;
}

Block Parser::ParseTemplate() {
  Block block = ParseUntil({}, nullptr);
  if (!unknown_.empty()) {
    const UnknownName& name = unknown_.front();
    if (name.is_filter) FailUnknownFilter(name.name, name.line);
    FailUnknownTest(name.name, name.line);
  }
  return block;
}

Block Parser::ParseBody(Ends ends, std::string* end_tag) {
  SkipOperator(":");
  ExpectType(TokenType::kBlockEnd, "end of statement block");
  return ParseUntil(ends, end_tag);
}

Block Parser::ParseUntil(Ends ends, std::string* end_tag) {
  Block block;
  while (Current().type != TokenType::kEnd) {
    const Token token = Take();
    if (token.type == TokenType::kData) {
      auto* output = arena_->New<OutputStatement>(token.line);
      output->text = MarkedString(token.text);
      block.push_back(output);
    } else if (token.type == TokenType::kVariableBegin) {
      auto* output = arena_->New<OutputStatement>(token.line);
      output->expr = ParseTuple(true, "", false);
      block.push_back(output);
      ExpectType(TokenType::kVariableEnd, "end of print statement");
    } else {
      if (Current().type == TokenType::kName &&
          std::find(ends.begin(), ends.end(), Current().text) != ends.end()) {
        *end_tag = Take().text;
        return block;
      }
      if (AtName("print")) {
        ParsePrint(&block);
      } else {
        block.push_back(ParseStatement());
      }
      ExpectType(TokenType::kBlockEnd, "end of statement block");
    }
  }
  if (ends.size() != 0) {
    std::string wanted;
    for (const std::string_view end : ends) {
      wanted += (wanted.empty() ? "'" : " or '") + std::string(end) + "'";
    }
    Fail(fmt::format("unexpected end of template: looking for {} to close '{}'", wanted,
                     open_tags_.back()));
  }
  return block;
}

void Parser::FailUnknownTag(const Token& tag) const {
  constexpr std::string_view kKnown[] = {"autoescape", "block",  "do",      "extends",
                                         "from",       "import", "include", "trans"};
  if (std::find(std::begin(kKnown), std::end(kKnown), tag.text) != std::end(kKnown)) {
    FailUnsupported(tag.line, "the tag '" + tag.text + "' is not supported");
  }
  std::string message = "unknown tag '" + tag.text + "'";
  if (!open_tags_.empty()) message += ", inside of '" + open_tags_.back() + "'";
  FailAt(tag.line, message);
}

Statement* Parser::ParseStatement() {
  NestingGuard guard(this);
  const Token tag = Current();
  if (tag.type != TokenType::kName) Fail("tag name expected, got " + Describe(tag));
  struct Tag {
    std::string_view name;
    Statement* (Parser::*parse)();
  };
  static constexpr Tag kTags[] = {
      {"for", &Parser::ParseFor},        {"if", &Parser::ParseIf},
      {"set", &Parser::ParseSet},        {"macro", &Parser::ParseMacro},
      {"call", &Parser::ParseCallBlock}, {"filter", &Parser::ParseFilterBlock},
      {"with", &Parser::ParseWith},      {"generation", &Parser::ParseGeneration},
  };
  for (const Tag& known : kTags) {
    if (tag.text != known.name) continue;
    open_tags_.push_back(tag.text);
    Statement* statement = (this->*known.parse)();
    open_tags_.pop_back();
    return statement;
  }
  if (tag.text == "break" || tag.text == "continue") {
    if (loops_ == 0) Fail("'" + tag.text + "' outside of a loop");
    Take();
    if (tag.text == "break") return arena_->New<BreakStatement>(tag.line);
    return arena_->New<ContinueStatement>(tag.line);
  }
  FailUnknownTag(tag);
}

Statement* Parser::ParseFor() {
  auto* loop = arena_->New<ForStatement>(Take().line);
  ++loops_;
  loop->target = ParseTarget(false, "in");
  --loops_;
  if (!SkipName("in")) Fail("expected 'in', got " + Describe(Current()));
  loop->iterable = ParseTuple(false, "recursive", false);
  if (SkipName("if")) loop->filter = ParseExpression();
  loop->recursive = SkipName("recursive");
  std::string end;
  ++loops_;
  loop->body = ParseBody({"endfor", "else"}, &end);
  --loops_;
  if (end == "else") loop->otherwise = ParseBody({"endfor"}, &end);
  return loop;
}

Statement* Parser::ParseIf() {
  auto* statement = arena_->New<IfStatement>(Take().line);
  const size_t unknown = unknown_.size();
  std::string end;
  do {
    Expr* condition = ParseTuple(false, "", false);
    statement->branches.emplace_back(condition, ParseBody({"elif", "else", "endif"}, &end));
  } while (end == "elif");
  if (end == "else") statement->otherwise = ParseBody({"endif"}, &end);
  unknown_.resize(unknown);
  return statement;
}

Statement* Parser::ParseSet() {
  const int line = Take().line;
  Target* target = ParseTarget(true, "");
  if (SkipOperator("=")) {
    auto* statement = arena_->New<SetStatement>(line);
    statement->target = target;
    statement->value = ParseTuple(true, "", false);
    return statement;
  }
  auto* statement = arena_->New<SetBlockStatement>(line);
  statement->target = target;
  if (AtOperator("|")) statement->filter = ParseFilter(nullptr, false);
  std::string end;
  statement->body = ParseBody({"endset"}, &end);
  return statement;
}

Statement* Parser::ParseMacro() {
  auto* statement = arena_->New<MacroStatement>(Take().line);
  statement->macro.name = ParseTargetName();
  ParseSignature(&statement->macro);
  ParseMacroBody(&statement->macro, "endmacro");
  return statement;
}

Statement* Parser::ParseCallBlock() {
  auto* statement = arena_->New<CallBlockStatement>(Take().line);
  if (AtOperator("(")) ParseSignature(&statement->caller);
  Expr* call = ParseExpression();
  if (call->kind != ExprKind::kCall) FailAt(statement->line, "expected a call after 'call'");
  statement->call = static_cast<CallExpr*>(call);
  ParseMacroBody(&statement->caller, "endcall");
  return statement;
}

void Parser::ParseSignature(MacroBody* macro) {
  ExpectOperator("(");
  while (!AtOperator(")")) {
    if (!macro->parameters.empty()) ExpectOperator(",");
    macro->parameters.push_back(ParseTargetName());
    if (SkipOperator("=")) {
      macro->defaults.push_back(ParseExpression());
    } else if (!macro->defaults.empty()) {
      Fail("a parameter without a default follows one with a default");
    }
  }
  ExpectOperator(")");
}

void Parser::ParseMacroBody(MacroBody* macro, std::string_view end) {
  open_macros_.push_back(macro);
  const int loops = std::exchange(loops_, 0);
  std::string end_tag;
  macro->body = ParseBody({end}, &end_tag);
  loops_ = loops;
  open_macros_.pop_back();
  const auto& parameters = macro->parameters;
  const auto declared = [&](std::string_view name) {
    return std::find(parameters.begin(), parameters.end(), name) != parameters.end();
  };
  if (declared("varargs")) macro->uses_varargs = false;
  if (declared("kwargs")) macro->uses_kwargs = false;
}

Statement* Parser::ParseFilterBlock() {
  auto* statement = arena_->New<FilterBlockStatement>(Take().line);
  statement->filter = ParseFilter(nullptr, true);
  std::string end;
  statement->body = ParseBody({"endfilter"}, &end);
  return statement;
}

Statement* Parser::ParseWith() {
  auto* statement = arena_->New<WithStatement>(Take().line);
  while (Current().type != TokenType::kBlockEnd) {
    if (!statement->assignments.empty()) ExpectOperator(",");
    Target* target = ParseTarget(false, "");
    ExpectOperator("=");
    statement->assignments.emplace_back(target, ParseExpression());
  }
  std::string end;
  statement->body = ParseBody({"endwith"}, &end);
  return statement;
}

Statement* Parser::ParseGeneration() {
  auto* statement = arena_->New<GenerationStatement>(Take().line);
  // Jinja compiles the body into a separate function.
  const int loops = std::exchange(loops_, 0);
  std::string end;
  statement->body = ParseBody({"endgeneration"}, &end);
  loops_ = loops;
  return statement;
}

Statement* Parser::ParsePrint(Block* block) {
  Take();
  bool first = true;
  while (Current().type != TokenType::kBlockEnd) {
    if (!first) ExpectOperator(",");
    first = false;
    auto* output = arena_->New<OutputStatement>(Current().line);
    output->expr = ParseExpression();
    block->push_back(output);
  }
  return nullptr;
}

std::string Parser::ParseTargetName() {
  const int line = Current().line;
  std::string name = ExpectName();
  constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
  if (std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants)) {
    FailAt(line, "cannot assign to '" + name + "'");
  }
  if (name == "loop" && loops_ > 0) FailAt(line, "cannot assign to 'loop' inside of a loop");
  return name;
}

Target* Parser::ParseTargetItem(bool allow_namespace) {
  NestingGuard guard(this);
  if (SkipOperator("(")) {
    Target* target = ParseTarget(false, "");
    ExpectOperator(")");
    return target;
  }
  auto* target = arena_->New<Target>(Current().line);
  target->name = ParseTargetName();
  if (allow_namespace && SkipOperator(".")) target->attribute = ExpectName();
  return target;
}

Target* Parser::ParseTarget(bool allow_namespace, std::string_view end_name) {
  Target* first = ParseTargetItem(allow_namespace);
  if (!AtOperator(",")) return first;
  auto* tuple = arena_->New<Target>(first->line);
  tuple->is_tuple = true;
  tuple->targets.push_back(first);
  while (SkipOperator(",")) {
    const bool end = Current().type == TokenType::kBlockEnd || AtOperator(")") || AtOperator("=") ||
                     (!end_name.empty() && AtName(end_name));
    if (end) break;
    tuple->targets.push_back(ParseTargetItem(allow_namespace));
  }
  return tuple;
}

}  // namespace litecache::tokenizer::jinja

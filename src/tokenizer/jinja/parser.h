// Recursive-descent parser of the template language: statements in parser.cc, expressions in
// parser_expressions.cc.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/lexer.h"

namespace litecache::tokenizer::jinja {

class Parser {
 public:
  // Nodes are allocated in `arena`, which must outlive the tree.
  Parser(std::string_view source, Arena* arena) : tokens_(Tokenize(source)), arena_(arena) {}

  // Throws InvalidArgument (malformed) or Unsupported (a tag, filter or test of Jinja that is
  // missing here), both with the line.
  Block ParseTemplate();

 private:
  // Limit on the nesting of parentheses, brackets and blocks: bounds the parser's recursion.
  static constexpr int kMaxNesting = 150;

  class NestingGuard {
   public:
    explicit NestingGuard(Parser* parser) : parser_(parser) {
      if (++parser_->nesting_ > kMaxNesting) parser_->Fail("nested too deeply");
    }
    ~NestingGuard() { --parser_->nesting_; }

   private:
    Parser* parser_;
  };

  // Tokens.
  const Token& Current() const { return tokens_[position_]; }
  const Token& Ahead() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  Token Take();
  bool AtOperator(std::string_view op) const;
  bool AtName(std::string_view name) const;
  bool SkipOperator(std::string_view op);
  bool SkipName(std::string_view name);
  void ExpectOperator(std::string_view op);
  void ExpectType(TokenType type, std::string_view what);
  std::string ExpectName();
  [[noreturn]] void Fail(const std::string& message) const { FailAt(Current().line, message); }
  [[noreturn]] void FailAt(int line, const std::string& message) const {
    throw InvalidArgument("chat template line {}: {}", line, message);
  }
  [[noreturn]] void FailUnsupported(int line, const std::string& message) const {
    throw Unsupported("chat template line {}: {}", line, message);
  }

  // Statements. A body ends before one of `ends`; the tag that ended it is returned, already
  // consumed.
  using Ends = std::initializer_list<std::string_view>;
  Block ParseBody(Ends ends, std::string* end_tag);
  Block ParseUntil(Ends ends, std::string* end_tag);
  Statement* ParseStatement();
  Statement* ParseFor();
  Statement* ParseIf();
  Statement* ParseSet();
  Statement* ParseMacro();
  Statement* ParseCallBlock();
  Statement* ParseFilterBlock();
  Statement* ParseWith();
  Statement* ParseGeneration();
  Statement* ParsePrint(Block* block);
  void ParseSignature(MacroBody* macro);
  void ParseMacroBody(MacroBody* macro, std::string_view end);
  Target* ParseTarget(bool allow_namespace, std::string_view end_name);
  Target* ParseTargetItem(bool allow_namespace);
  std::string ParseTargetName();
  [[noreturn]] void FailUnknownTag(const Token& tag) const;

  // Expressions.
  Expr* ParseExpression() { return ParseConditional(); }
  Expr* ParseTuple(bool with_conditional, std::string_view end_name, bool parenthesized);
  Expr* ParseConditional();
  Expr* ParseOr();
  Expr* ParseAnd();
  Expr* ParseNot();
  Expr* ParseCompare();
  Expr* ParseSum();
  Expr* ParseConcat();
  Expr* ParseProduct();
  Expr* ParsePower();
  Expr* ParseUnary(bool with_filter);
  Expr* ParsePrimary();
  Expr* ParseListLiteral();
  Expr* ParseDictLiteral();
  Expr* ParsePostfix(Expr* expr);
  Expr* ParseFilterExpr(Expr* expr);
  Expr* ParseSubscript(Expr* object);
  Expr* ParseFilter(Expr* input, bool first_without_pipe);
  Expr* ParseTest(Expr* input);
  Expr* ParseCall(Expr* callee);
  Arguments ParseArguments();
  Expr* Constant(int line, Value value);
  template <typename T>
  Expr* Binary(int line, Expr* left, Expr* right);
  Expr* MakeArithmetic(int line, Op op, Expr* left, Expr* right);

  std::vector<Token> tokens_;
  size_t position_ = 0;
  Arena* arena_;
  int nesting_ = 0;
  int loops_ = 0;  // for loops around the current position, within the innermost macro
  // Filters and tests that do not exist. Jinja rejects them at once, except inside conditions,
  // which may first test whether they exist.
  struct UnknownName {
    bool is_filter = false;
    std::string name;
    int line = 1;
  };
  std::vector<UnknownName> unknown_;
  std::vector<MacroBody*> open_macros_;
  std::vector<std::string> open_tags_;
};

}  // namespace litecache::tokenizer::jinja

// Syntax tree of a template. An Arena owns the nodes, which point to their children with plain
// pointers, so that destroying a tree never recurses, however deep it is.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/jinja/value.h"
#include "tokenizer/jinja/value_ops.h"

namespace litecache::tokenizer::jinja {

struct Node {
  int line = 1;
  virtual ~Node() = default;
};

class Arena {
 public:
  template <typename T>
  T* New(int line) {
    auto node = std::make_unique<T>();
    T* raw = node.get();
    raw->line = line;
    nodes_.push_back(std::move(node));
    return raw;
  }

 private:
  std::vector<std::unique_ptr<Node>> nodes_;
};

enum class ExprKind {
  kConst,
  kName,
  kList,
  kTuple,
  kDict,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kNot,
  kNegate,
  kPositive,
  kAnd,
  kOr,
  kArithmetic,
  kConcat,
  kCompare,
  kConditional,
};

struct Expr : Node {
  explicit Expr(ExprKind k) : kind(k) {}
  const ExprKind kind;
};

template <ExprKind K>
struct ExprOf : Expr {
  ExprOf() : Expr(K) {}
};

struct ConstExpr : ExprOf<ExprKind::kConst> {
  Value value;
};
struct NameExpr : ExprOf<ExprKind::kName> {
  std::string name;
};
struct ListExpr : ExprOf<ExprKind::kList> {
  std::vector<Expr*> items;
};
struct TupleExpr : ExprOf<ExprKind::kTuple> {
  std::vector<Expr*> items;
};
struct DictExpr : ExprOf<ExprKind::kDict> {
  std::vector<std::pair<Expr*, Expr*>> items;
};
struct AttributeExpr : ExprOf<ExprKind::kAttribute> {
  Expr* object = nullptr;
  std::string name;
};
struct ItemExpr : ExprOf<ExprKind::kItem> {
  Expr* object = nullptr;
  Expr* key = nullptr;
};
struct SliceExpr : ExprOf<ExprKind::kSlice> {
  Expr* object = nullptr;
  Expr* start = nullptr;  // null if left out
  Expr* stop = nullptr;
  Expr* step = nullptr;
};

struct Arguments {
  std::vector<Expr*> positional;
  std::vector<std::pair<std::string, Expr*>> keyword;
  Expr* star = nullptr;         // *args
  Expr* double_star = nullptr;  // **kwargs
};

struct CallExpr : ExprOf<ExprKind::kCall> {
  Expr* callee = nullptr;
  Arguments arguments;
};
struct FilterExpr : ExprOf<ExprKind::kFilter> {
  Expr* input = nullptr;  // null: the text of the surrounding filter or set block
  std::string name;
  Arguments arguments;
};
struct TestExpr : ExprOf<ExprKind::kTest> {
  Expr* input = nullptr;
  std::string name;
  Arguments arguments;
};

template <ExprKind K>
struct UnaryExpr : ExprOf<K> {
  Expr* operand = nullptr;
};
using NotExpr = UnaryExpr<ExprKind::kNot>;
using NegateExpr = UnaryExpr<ExprKind::kNegate>;
using PositiveExpr = UnaryExpr<ExprKind::kPositive>;

template <ExprKind K>
struct BinaryExpr : ExprOf<K> {
  Expr* left = nullptr;
  Expr* right = nullptr;
};
using AndExpr = BinaryExpr<ExprKind::kAnd>;
using OrExpr = BinaryExpr<ExprKind::kOr>;
struct ArithmeticExpr : BinaryExpr<ExprKind::kArithmetic> {
  Op op = Op::kAdd;
};

struct ConcatExpr : ExprOf<ExprKind::kConcat> {
  std::vector<Expr*> parts;
};
struct CompareExpr : ExprOf<ExprKind::kCompare> {
  Expr* first = nullptr;
  std::vector<std::pair<Op, Expr*>> rest;
};
struct ConditionalExpr : ExprOf<ExprKind::kConditional> {
  Expr* condition = nullptr;
  Expr* then = nullptr;
  Expr* otherwise = nullptr;  // null: undefined
};

enum class StatementKind {
  kOutput,
  kFor,
  kIf,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kGeneration,
  kBreak,
  kContinue,
};

struct Statement : Node {
  explicit Statement(StatementKind k) : kind(k) {}
  const StatementKind kind;
};

template <StatementKind K>
struct StatementOf : Statement {
  StatementOf() : Statement(K) {}
};

using Block = std::vector<Statement*>;

// The target of '=' or 'for': a name, namespace.attribute, or a tuple of those.
struct Target : Node {
  std::string name;
  std::string attribute;         // of the namespace `name`; empty: the name itself
  std::vector<Target*> targets;  // of a tuple
  bool is_tuple = false;
};

// Plain text if `expr` is null.
struct OutputStatement : StatementOf<StatementKind::kOutput> {
  MarkedString text;
  Expr* expr = nullptr;
};
struct ForStatement : StatementOf<StatementKind::kFor> {
  Target* target = nullptr;
  Expr* iterable = nullptr;
  Expr* filter = nullptr;
  bool recursive = false;
  Block body;
  Block otherwise;
};
struct IfStatement : StatementOf<StatementKind::kIf> {
  std::vector<std::pair<Expr*, Block>> branches;
  Block otherwise;
};
struct SetStatement : StatementOf<StatementKind::kSet> {
  Target* target = nullptr;
  Expr* value = nullptr;
};
struct SetBlockStatement : StatementOf<StatementKind::kSetBlock> {
  Target* target = nullptr;
  Expr* filter = nullptr;
  Block body;
};

// A macro, or the body of a call block.
struct MacroBody {
  std::string name;  // empty: a call block
  std::vector<std::string> parameters;
  std::vector<Expr*> defaults;  // of the last parameters
  Block body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};
struct MacroStatement : StatementOf<StatementKind::kMacro> {
  MacroBody macro;
};
struct CallBlockStatement : StatementOf<StatementKind::kCallBlock> {
  MacroBody caller;
  CallExpr* call = nullptr;
};
struct FilterBlockStatement : StatementOf<StatementKind::kFilterBlock> {
  Expr* filter = nullptr;
  Block body;
};
struct WithStatement : StatementOf<StatementKind::kWith> {
  std::vector<std::pair<Target*, Expr*>> assignments;
  Block body;
};
struct GenerationStatement : StatementOf<StatementKind::kGeneration> {
  Block body;
};
struct BreakStatement : StatementOf<StatementKind::kBreak> {};
struct ContinueStatement : StatementOf<StatementKind::kContinue> {};

}  // namespace litecache::tokenizer::jinja

// State of a running template that every operation needs: the current line, for errors, and the
// remaining budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/work_limit.h"
#include "tokenizer/jinja/value.h"

namespace litecache::tokenizer::jinja {

// Limits on a template's resources, so that a hostile or broken one ends with an error. The
// defaults are far above the needs of real chat templates: the largest seen take under 10^5 steps.
struct Limits {
  // Nodes evaluated, items visited, strings read (8 bytes per step) and built (kStepsOfAString
  // more).
  int64_t steps = 30'000'000;
  int64_t string_bytes = 64 << 20;         // one string, including the rendered prompt
  int64_t total_bytes = int64_t{1} << 30;  // all strings built
  int64_t list_items = 4 << 20;            // one list
  int eval_depth = 2000;                   // nested evaluations: macros, recursive loops
  // Stack used by nested evaluations: the size of a level depends on the build, by a factor of ten
  // with sanitizers. Half of the 8 MiB that threads have by default.
  int64_t stack_bytes = 4 << 20;
  int value_depth = 200;  // nesting of lists and dicts
};

class Runtime {
 public:
  Runtime(const Limits& limits, std::tm now) : limits_(limits), now_(now) {}
  // Namespaces and captured scopes may refer to themselves; the destructor breaks the cycles.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  int line() const { return line_; }
  void set_line(int line) { line_ = line; }
  const Limits& limits() const { return limits_; }
  const std::tm& now() const { return now_; }

  // Throws InvalidArgument "chat template line N: ...".
  template <typename... Args>
  [[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) const {
    FailMessage(fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void FailMessage(const std::string& message) const;
  // Throws Unsupported in the same form.
  [[noreturn]] void FailUnsupported(const std::string& message) const;

  void Step(int64_t n = 1) {
    CheckWork(n);
    steps_ += n;
    if (steps_ > limits_.steps) FailSteps();
  }
  // Call before reading that many bytes of strings: reading costs steps, too.
  void Touch(size_t bytes) { Step(static_cast<int64_t>(bytes / kBytesOfAStep)); }
  void Touch(const Value& value) {
    if (value.IsString()) Touch(value.text().size());
  }
  // Call before building a string of `bytes`.
  void ChargeBytes(size_t bytes);
  // Call before building a list of `items`.
  void ChargeItems(int64_t items);

  // Every string, list, tuple and dict that a template creates is made here.
  Value MakeString(MarkedString text);
  Value MakeString(std::string text) { return MakeString(MarkedString(std::move(text))); }
  Value MakeList(std::vector<Value> items) { return MakeSequence(Type::kList, std::move(items)); }
  Value MakeTuple(std::vector<Value> items) { return MakeSequence(Type::kTuple, std::move(items)); }
  Value MakePair(Value first, Value second);
  Value MakeDict(std::shared_ptr<Dict> dict);
  Value MakeIterator(std::shared_ptr<Iterator> iterator, const Value& source);
  Value MakeView(const Value& dict, ViewKind kind);
  Value MakeNamespace(std::shared_ptr<NamespaceObject> object);

  // Sets the entry of a dict under construction; fails for a key that cannot be hashed.
  void SetEntry(Dict* dict, Value key, Value value) const;

  // Keeps what closures refer to until the end of the run.
  class Clearable {
   public:
    virtual ~Clearable() = default;
    virtual void Clear() = 0;
  };
  void KeepForClearing(std::shared_ptr<Clearable> item);

  // One level of nested evaluation, until it is destroyed.
  class DepthGuard {
   public:
    explicit DepthGuard(Runtime* rt) : rt_(rt) {
      if (++rt_->depth_ > rt_->limits_.eval_depth || rt_->StackUsed() > rt_->limits_.stack_bytes) {
        rt_->FailDepth();
      }
    }
    ~DepthGuard() { --rt_->depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;

   private:
    Runtime* rt_;
  };

 private:
  static constexpr size_t kBytesOfAStep = 8;
  // Allocating, filling and freeing a string takes as long as about so many other steps.
  static constexpr int64_t kStepsOfAString = 4;
  friend class DepthGuard;
  Value MakeSequence(Type type, std::vector<Value> items);
  void CheckDepth(int depth) const;
  [[noreturn]] void FailSteps() const;
  [[noreturn]] void FailDepth();
  // Bytes of stack between the construction of the runtime and here.
  int64_t StackUsed() const {
    const auto here = reinterpret_cast<intptr_t>(__builtin_frame_address(0));
    return here < stack_base_ ? stack_base_ - here : here - stack_base_;
  }

  Limits limits_;
  std::tm now_;
  int line_ = 1;
  int depth_ = 0;
  const intptr_t stack_base_ = reinterpret_cast<intptr_t>(__builtin_frame_address(0));
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;
  std::vector<std::shared_ptr<Clearable>> clearables_;
};

int ValueDepth(const Value& value);

}  // namespace litecache::tokenizer::jinja

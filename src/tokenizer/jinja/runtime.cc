#include "tokenizer/jinja/runtime.h"

#include <algorithm>

namespace litecache::tokenizer::jinja {

Runtime::~Runtime() {
  for (auto& item : namespaces_) item->attributes.Clear();
  for (auto& item : clearables_) item->Clear();
}

void Runtime::FailMessage(const std::string& message) const {
  throw InvalidArgument("chat template line {}: {}", line_, message);
}

void Runtime::FailUnsupported(const std::string& message) const {
  throw Unsupported("chat template line {}: {}", line_, message);
}

void Runtime::FailSteps() const {
  Fail("gave up after {} steps: the template loops too long", limits_.steps);
}

void Runtime::FailDepth() {
  --depth_;  // if the guard's constructor throws, its destructor does not run
  Fail("nested {} levels deep, over the limit: macros or loops call themselves without end",
       depth_);
}

void Runtime::ChargeBytes(size_t bytes) {
  if (bytes > static_cast<size_t>(limits_.string_bytes)) {
    Fail("a string grows over the limit of {} bytes", limits_.string_bytes);
  }
  Touch(bytes);
  Step(kStepsOfAString);
  bytes_ += static_cast<int64_t>(bytes);
  if (bytes_ > limits_.total_bytes) {
    Fail("all strings together grow over the limit of {} bytes", limits_.total_bytes);
  }
}

void Runtime::ChargeItems(int64_t items) {
  if (items > limits_.list_items)
    Fail("a list grows over the limit of {} items", limits_.list_items);
  Step(items);
}

Value Runtime::MakeString(MarkedString text) {
  ChargeBytes(text.size());
  return Value::String(std::move(text));
}

int ValueDepth(const Value& value) {
  switch (value.type()) {
    case Type::kList:
    case Type::kTuple:
    case Type::kDict:
    case Type::kDictView:
    case Type::kIterator:
      return value.As<Container>().depth;
    default:
      return 0;
  }
}

void Runtime::CheckDepth(int depth) const {
  if (depth > limits_.value_depth) {
    Fail("lists and dicts nest more than {} levels deep", limits_.value_depth);
  }
}

Value Runtime::MakeSequence(Type type, std::vector<Value> items) {
  ChargeItems(static_cast<int64_t>(items.size()));
  auto object = std::make_shared<SequenceObject>();
  for (const Value& item : items) object->depth = std::max(object->depth, ValueDepth(item) + 1);
  CheckDepth(object->depth);
  object->items = std::move(items);
  return Value::Of(type, std::move(object));
}

Value Runtime::MakePair(Value first, Value second) {
  std::vector<Value> items;
  items.reserve(2);
  items.push_back(std::move(first));
  items.push_back(std::move(second));
  return MakeTuple(std::move(items));
}

Value Runtime::MakeDict(std::shared_ptr<Dict> dict) {
  ChargeItems(static_cast<int64_t>(dict->size()));
  for (const auto& [key, value] : dict->entries()) {
    dict->depth = std::max({dict->depth, ValueDepth(key) + 1, ValueDepth(value) + 1});
  }
  CheckDepth(dict->depth);
  return Value::Of(Type::kDict, std::move(dict));
}

Value Runtime::MakeIterator(std::shared_ptr<Iterator> iterator, const Value& source) {
  iterator->depth = ValueDepth(source) + 1;
  CheckDepth(iterator->depth);
  return Value::Of(Type::kIterator, std::move(iterator));
}

Value Runtime::MakeView(const Value& dict, ViewKind kind) {
  auto view = std::make_shared<DictViewObject>();
  view->dict = dict.Share<Dict>();
  view->kind = kind;
  view->depth = ValueDepth(dict) + 1;
  CheckDepth(view->depth);
  return Value::Of(Type::kDictView, std::move(view));
}

Value Runtime::MakeNamespace(std::shared_ptr<NamespaceObject> object) {
  Step();
  namespaces_.push_back(object);
  return Value::Of(Type::kNamespace, std::move(object));
}

void Runtime::SetEntry(Dict* dict, Value key, Value value) const {
  if (!HashKey(key)) Fail("unhashable type: '{}'", TypeName(key));
  dict->Set(std::move(key), std::move(value));
}

void Runtime::KeepForClearing(std::shared_ptr<Clearable> item) {
  clearables_.push_back(std::move(item));
}

}  // namespace litecache::tokenizer::jinja

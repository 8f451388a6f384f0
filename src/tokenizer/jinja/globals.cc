#include <ctime>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/call_args.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

namespace {

// The limit of Jinja's sandbox.
constexpr int64_t kMaxRange = 100000;

Value Range(Runtime& rt, CallArgs& args) {
  const BoundArgs bound(rt, "range", args, {"/start", "/stop", "/step"}, 1);
  auto range = std::make_shared<RangeObject>();
  if (bound.Has(1)) {
    range->start = bound.RequireInt(0);
    range->stop = bound.RequireInt(1);
    range->step = bound.Int(2, 1);
  } else {
    range->stop = bound.RequireInt(0);
  }
  if (range->step == 0) rt.Fail("range() arg 3 must not be zero");
  if (range->size() > kMaxRange) {
    rt.Fail("range of {} items is over the limit of {}", range->size(), kMaxRange);
  }
  return Value::Of(Type::kRange, std::move(range));
}

// Fills a dict from dict(mapping_or_pairs, name=value, ...).
void FillDict(Runtime& rt, std::string_view name, CallArgs& args, Dict* dict) {
  if (args.positional.size() > 1) {
    rt.Fail("{}() takes at most 1 positional argument ({} given)", name, args.positional.size());
  }
  if (args.positional.size() == 1) {
    const Value& source = args.positional[0];
    if (source.Is(Type::kDict)) {
      for (const auto& [key, value] : source.As<Dict>().entries()) rt.SetEntry(dict, key, value);
    } else {
      for (const Value& pair : ToVector(rt, source)) {
        const std::vector<Value> parts = ToVector(rt, pair);
        if (parts.size() != 2) {
          rt.Fail("{}() needs pairs; got an element of length {}", name, parts.size());
        }
        rt.SetEntry(dict, parts[0], parts[1]);
      }
    }
  }
  for (const auto& [key, value] : args.keyword) rt.SetEntry(dict, rt.MakeString(key), value);
}

Value MakeDictFunction(Runtime& rt, CallArgs& args) {
  auto dict = std::make_shared<Dict>();
  FillDict(rt, "dict", args, dict.get());
  return rt.MakeDict(std::move(dict));
}

Value MakeNamespaceFunction(Runtime& rt, CallArgs& args) {
  auto object = std::make_shared<NamespaceObject>();
  FillDict(rt, "namespace", args, &object->attributes);
  for (const auto& [key, value] : object->attributes.entries()) {
    if (key.IsString() && key.text().starts_with('_')) {
      rt.Fail("a namespace cannot have the attribute '{}': it starts with an underscore",
              key.text());
    }
  }
  return rt.MakeNamespace(std::move(object));
}

Value RaiseException(Runtime& rt, CallArgs& args) {
  const BoundArgs bound(rt, "raise_exception", args, {"message"}, 1);
  throw InvalidArgument("the chat template refuses these messages: {}", Str(rt, bound[0]).text());
}

Value StrftimeNow(Runtime& rt, CallArgs& args) {
  const BoundArgs bound(rt, "strftime_now", args, {"format"}, 1);
  // A trailing space distinguishes an empty result from a buffer that is too small.
  const std::string format = bound.RequireString(0).text() + " ";
  rt.ChargeBytes(format.size());
  for (size_t size = 256; size <= (1u << 20); size *= 4) {
    std::string buffer(size, '\0');
    const size_t length = std::strftime(buffer.data(), size, format.c_str(), &rt.now());
    if (length == 0) continue;
    buffer.resize(length - 1);
    return rt.MakeString(std::move(buffer));
  }
  rt.Fail("strftime_now() format of {} bytes is too long", format.size());
}

class Cycler : public Callable, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  Value Call(Runtime& rt, CallArgs&) override { rt.Fail("'Cycler' object is not callable"); }
  std::string Repr() const override { return "<Cycler>"; }
  std::string TypeName() const override { return "Cycler"; }

  std::optional<Value> Attribute(Runtime& rt, const std::string& name) override {
    if (name == "current") return items_[position_];
    if (name == "pos") return Value::Int(static_cast<int64_t>(position_));
    if (name != "next" && name != "reset") return std::nullopt;
    return MakeFunction(name,
                        [self = shared_from_this(), next = name == "next"](Runtime&, CallArgs&) {
                          if (!next) {
                            self->position_ = 0;
                            return Value::None();
                          }
                          Value item = self->items_[self->position_];
                          self->position_ = (self->position_ + 1) % self->items_.size();
                          return item;
                        });
  }

 private:
  std::vector<Value> items_;
  size_t position_ = 0;
};

Value MakeCycler(Runtime& rt, CallArgs& args) {
  if (args.positional.empty()) rt.Fail("at least one item has to be provided");
  return Value::Of(Type::kCallable, std::make_shared<Cycler>(args.positional));
}

Value MakeJoiner(Runtime& rt, CallArgs& args) {
  const BoundArgs bound(rt, "joiner", args, {"sep"});
  const Value separator = bound.Get(0, Value::String(", "));
  return MakeFunction("joiner",
                      [separator, used = std::make_shared<bool>(false)](Runtime&, CallArgs&) {
                        if (std::exchange(*used, true)) return Value(separator);
                        return Value::String("");
                      });
}

}  // namespace

std::vector<std::pair<std::string, Value>> Globals() {
  return {
      {"range", MakeFunction("range", Range)},
      {"dict", MakeFunction("dict", MakeDictFunction)},
      {"namespace", MakeFunction("namespace", MakeNamespaceFunction)},
      {"raise_exception", MakeFunction("raise_exception", RaiseException)},
      {"strftime_now", MakeFunction("strftime_now", StrftimeNow)},
      {"cycler", MakeFunction("cycler", MakeCycler)},
      {"joiner", MakeFunction("joiner", MakeJoiner)},
      {"lipsum", MakeFunction("lipsum",
                              [](Runtime& rt, CallArgs&) -> Value {
                                rt.FailUnsupported("the function lipsum() is not supported");
                              })},
  };
}

}  // namespace litecache::tokenizer::jinja

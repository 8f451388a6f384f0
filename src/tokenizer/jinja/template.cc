#include "tokenizer/jinja/template.h"

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/evaluator.h"
#include "tokenizer/jinja/parser.h"

namespace litecache::tokenizer::jinja {

Template::Template(std::string_view source) { body_ = Parser(source, &arena_).ParseTemplate(); }

MarkedString Template::Render(Runtime& rt,
                              const std::vector<std::pair<std::string, Value>>& variables) const {
  Evaluator evaluator(&rt);
  auto scope = std::make_shared<Scope>(nullptr);
  for (auto& [name, value] : Globals()) scope->variables.insert_or_assign(name, value);
  for (const auto& [name, value] : variables) scope->variables.insert_or_assign(name, value);
  MarkedString out;
  evaluator.Run(body_, scope, &out);
  return out;
}

}  // namespace litecache::tokenizer::jinja

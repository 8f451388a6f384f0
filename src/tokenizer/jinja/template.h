// A parsed template, ready to be rendered any number of times, from any number of threads.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer::jinja {

class Template {
 public:
  // Throws InvalidArgument for a malformed template and Unsupported for tags and filters that this
  // interpreter lacks, both with the line.
  explicit Template(std::string_view source);

  // `variables` shadow the global functions. The values must have been made with `rt`.
  MarkedString Render(Runtime& rt,
                      const std::vector<std::pair<std::string, Value>>& variables) const;

 private:
  Arena arena_;
  Block body_;
};

}  // namespace litecache::tokenizer::jinja

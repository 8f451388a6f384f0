// Methods that every policy's cache and plan implement alike, from the policy's Shape.
#pragma once

#include <cstdint>
#include <utility>

#include "kv/layout.h"

namespace litecache::kv {

// Base: Cache, CachePlan or a class derived from them. Shape: a policy's sizes, with `layout`,
// BytesFor() and ForkBytesFor().
template <class Base, class Shape>
class WithShape : public Base {
 public:
  const Layout& layout() const final { return shape_.layout; }
  TierBytes BytesFor(int64_t tokens) const final { return shape_.BytesFor(tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const final {
    return shape_.ForkBytesFor(shared, tokens);
  }

 protected:
  template <class... Arguments>
  explicit WithShape(Shape shape, Arguments&&... of_base)
      : Base(std::forward<Arguments>(of_base)...), shape_(std::move(shape)) {}

  const Shape shape_;
};

}  // namespace litecache::kv

// Restricts an answer's tokens while it is sampled.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace litecache {

// Follows one sample. Used by one thread at a time; clones are independent.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // A copy in the same state. Thread-safe as long as nobody modifies the object.
  virtual std::unique_ptr<TokenConstraint> Clone() const = 0;

  // Does a part of what Mask() would have to do, about `work` steps of some 10 ns; returns whether
  // nothing is left of it. A sample takes no part in the engine's steps until then, so that others
  // do not wait for it.
  virtual bool Prepare([[maybe_unused]] int64_t work) { return true; }
  // The allowed next tokens: bit i % 32 of word i / 32 is set if token i is allowed; tokens beyond
  // the last word are not. Valid until the next call on this object. Tokens that end an answer are
  // not part of it: they are allowed if Complete().
  virtual std::span<const uint32_t> Mask() = 0;
  // Appends one of the tokens that Mask() allows.
  virtual void Accept(int32_t token) = 0;
  // Whether the answer may end here.
  virtual bool Complete() const = 0;
  // Whether nothing can follow: the answer has ended.
  virtual bool Finished() const = 0;
};

inline bool MaskAllows(std::span<const uint32_t> mask, int32_t token) {
  const auto word = static_cast<size_t>(token) / 32;
  return word < mask.size() && (mask[word] >> (static_cast<uint32_t>(token) % 32) & 1u) != 0;
}

}  // namespace litecache

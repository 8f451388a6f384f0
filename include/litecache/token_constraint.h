// What an answer may consist of, asked token by token while it is sampled.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace litecache {

// Follows one sample. Used by one thread at a time; clones are independent.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // A copy at the same place. Thread-safe on an object that nobody changes.
  virtual std::unique_ptr<TokenConstraint> Clone() const = 0;

  // Bit i % 32 of word i / 32 is set where token i may come next; tokens behind the last word may
  // not. Valid until the next call of this object. Tokens that end an answer are not the
  // constraint's concern: they may come where Complete() says so.
  virtual std::span<const uint32_t> Mask() = 0;
  // Takes one of the tokens that Mask() allows.
  virtual void Accept(int32_t token) = 0;
  // The answer may end here.
  virtual bool Complete() const = 0;
  // Nothing can follow: the answer has ended.
  virtual bool Finished() const = 0;
};

inline bool MaskAllows(std::span<const uint32_t> mask, int32_t token) {
  const auto word = static_cast<size_t>(token) / 32;
  return word < mask.size() && (mask[word] >> (static_cast<uint32_t>(token) % 32) & 1u) != 0;
}

}  // namespace litecache

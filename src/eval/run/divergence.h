// Divergence between next-token distributions.
#pragma once

#include <span>

namespace litecache::eval {

struct Divergence {
  double kl = 0;  // sum of p * log(p / q), in nats
  bool same_top = false;
};

// p and q are finite logits over the same vocabulary.
Divergence Compare(std::span<const float> p, std::span<const float> q);

}  // namespace litecache::eval

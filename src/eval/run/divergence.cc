#include "eval/run/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace litecache::eval {

Divergence Compare(std::span<const float> p, std::span<const float> q) {
  LC_CHECK(p.size() == q.size() && !p.empty());
  const auto top_p = std::max_element(p.begin(), p.end()) - p.begin();
  const auto top_q = std::max_element(q.begin(), q.end()) - q.begin();
  const double max_p = double{p[static_cast<size_t>(top_p)]};
  const double max_q = double{q[static_cast<size_t>(top_q)]};
  // sum p (log p - log q) = sum p (x - y) - log Z_p + log Z_q, all relative to the maxima.
  double z_p = 0, z_q = 0, weighted = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double x = double{p[i]} - max_p;
    const double y = double{q[i]} - max_q;
    const double weight = std::exp(x);
    z_p += weight;
    z_q += std::exp(y);
    weighted += weight * (x - y);
  }
  const double kl = weighted / z_p - std::log(z_p) + std::log(z_q);
  // Rounding may make a divergence of zero slightly negative.
  return {std::max(kl, 0.0), top_p == top_q};
}

}  // namespace litecache::eval

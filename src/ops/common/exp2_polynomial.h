// Coefficients shared by the vector versions of 2^x.
#pragma once

namespace litecache::ops::cpu {

// 2^r on [-1/2, 1/2] is 1 + r (c[4] + r (c[3] + r (c[2] + r (c[1] + r c[0])))): minimax for
// relative error, 9.2e-8 before rounding.
inline constexpr float kExp2Polynomial[5] = {1.326472715e-3f, 9.671512643e-3f, 5.550733743e-2f,
                                             2.402224209e-1f, 6.931469776e-1f};

}  // namespace litecache::ops::cpu

// Random inputs from a seed that is printed: every random test draws from TestSeed().
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

namespace litecache::testing {

// One seed per test program: LC_TEST_SEED if set, else from the system; printed once.
inline uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* fixed = std::getenv("LC_TEST_SEED");
    const uint64_t value =
        fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : std::random_device{}();
    std::cout << "LC_TEST_SEED=" << value << std::endl;
    return value;
  }();
  return seed;
}

// A generator for one test; `salt` gives tests of a program different generators.
inline std::mt19937_64 TestRandom(uint64_t salt = 0) {
  return std::mt19937_64(TestSeed() * 0x9e3779b97f4a7c15ull + salt);
}

}  // namespace litecache::testing

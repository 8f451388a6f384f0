// How an operation stores its results.
#pragma once

namespace litecache::ops {

enum class Epilogue {
  kStore,  // y  = x W^T + b
  kAdd,    // y += x W^T + b (residual stream)
};

}  // namespace litecache::ops

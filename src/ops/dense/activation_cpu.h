// ops/dense/activation.h on the CPU: the same contract, arguments already checked.
#pragma once

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/common/gate_function.h"
#include "ops/common/xielu.h"

namespace litecache::ops::cpu {

void GateMul(ThreadPool& pool, const MatrixView& gate, const MatrixView& up, const MatrixView& y,
             const GateFunction& function);
void SigmoidMul(ThreadPool& pool, const MatrixView& gate, const MatrixView& x);
void Relu(ThreadPool& pool, const MatrixView& x);
void ReluSquared(ThreadPool& pool, const MatrixView& x);
void Gelu(ThreadPool& pool, const MatrixView& x);
void Xielu(ThreadPool& pool, const XieluFunction& function, const MatrixView& x);

}  // namespace litecache::ops::cpu

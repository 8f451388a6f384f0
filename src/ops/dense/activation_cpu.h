// ops/dense/activation.h on the CPU: the same contract, arguments already checked.
#pragma once

#include "base/matrix_view.h"
#include "base/thread_pool.h"

namespace litecache::ops::cpu {

void SiluMul(ThreadPool& pool, const MatrixView& gate, const MatrixView& up, const MatrixView& y);
void Relu(ThreadPool& pool, const MatrixView& x);

}  // namespace litecache::ops::cpu

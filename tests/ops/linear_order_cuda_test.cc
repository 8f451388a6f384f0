// Products in parallel with and after other work: chains, overlaps, a shared GPU, graphs.
#include <cuda_runtime_api.h>

#include <bit>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

#include "device/cuda/branch.h"
#include "device/cuda/check.h"
#include "device/cuda/sm_split.h"
#include "ops/dense/convert_cuda.h"
#include "ops/dense/norm_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/linear_testing_cuda.h"
#include "test_size.h"

namespace litecache::ops::cuda {
namespace {

TEST_F(CudaLinearTest, AChainOfProducts) {
  // Each product multiplies, adds to or overwrites the result of the previous one, with other work
  // of the stream in between; also as a graph's first node and after a fork.
  // work between: also as a graph's first node and after a fork.
  PrepareLinear(*stream_);
  constexpr int64_t kWidth = 1544, kRows = 3;
  const auto make = [&](bool add) {
    return Make(kRows, kWidth, kWidth, DType::kBF16, DType::kF32, true, add, 0);
  };
  const LinearCase c = make(false), d = make(true);
  const LinearPart first = Target(c), second = Target(d);
  const MatrixView x = OnDevice(c.x);
  const MatrixView between = OnDevice(d.x);
  const size_t bytes = static_cast<size_t>(kRows * kWidth) * sizeof(float);
  const auto chain = [&] {
    for (int i = 0; i < 20; ++i) {
      ops::Linear(*stream_, x, first.weight, first.bias, first.y, Epilogue::kStore);
      Convert(*stream_, first.y, between);
      ops::Linear(*stream_, between, second.weight, second.bias, second.y, Epilogue::kStore);
      ops::Linear(*stream_, between, first.weight, first.bias, second.y, Epilogue::kAdd);
      ops::Linear(*stream_, x, second.weight, nullptr, first.y, Epilogue::kAdd);
      LC_CUDA(cudaMemsetAsync(first.y.data, 0, bytes / 2, AsCuda(*stream_).handle()));
      ops::Linear(*stream_, between, second.weight, nullptr, first.y, Epilogue::kAdd);
    }
  };
  const auto results = [&] {
    stream_->Synchronize();
    std::vector<float> all = Download(first.y.Row<float>(0), static_cast<size_t>(kRows * kWidth));
    const auto more = Download(second.y.Row<float>(0), static_cast<size_t>(kRows * kWidth));
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  // The reference: every product is waited for.
  ops::Linear(*stream_, x, first.weight, first.bias, first.y, Epilogue::kStore);
  stream_->Synchronize();
  Convert(*stream_, first.y, between);
  stream_->Synchronize();
  ops::Linear(*stream_, between, second.weight, second.bias, second.y, Epilogue::kStore);
  stream_->Synchronize();
  ops::Linear(*stream_, between, first.weight, first.bias, second.y, Epilogue::kAdd);
  stream_->Synchronize();
  ops::Linear(*stream_, x, second.weight, nullptr, first.y, Epilogue::kAdd);
  stream_->Synchronize();
  LC_CUDA(cudaMemsetAsync(first.y.data, 0, bytes / 2, AsCuda(*stream_).handle()));
  stream_->Synchronize();
  ops::Linear(*stream_, between, second.weight, nullptr, first.y, Epilogue::kAdd);
  const std::vector<float> want = results();
  chain();
  EXPECT_EQ(results(), want);

  CUstream_st* const handle = AsCuda(*stream_).handle();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaStream_t side = nullptr;
  cudaEvent_t forked = nullptr, joined = nullptr;
  LC_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  LC_CUDA(cudaEventCreate(&forked));
  LC_CUDA(cudaEventCreate(&joined));
  LC_CUDA(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
  LC_CUDA(cudaEventRecord(forked, handle));
  LC_CUDA(cudaStreamWaitEvent(side, forked, 0));
  LC_CUDA(cudaMemsetAsync(second.y.data, 0xff, bytes, side));
  LC_CUDA(cudaEventRecord(joined, side));
  ops::Linear(*stream_, x, first.weight, first.bias, first.y, Epilogue::kStore);
  LC_CUDA(cudaStreamWaitEvent(handle, joined, 0));
  chain();
  LC_CUDA(cudaStreamEndCapture(handle, &graph));
  LC_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 3; ++i) LC_CUDA(cudaGraphLaunch(executable, handle));
  EXPECT_EQ(results(), want);
  LC_CUDA(cudaGraphExecDestroy(executable));
  LC_CUDA(cudaGraphDestroy(graph));
  LC_CUDA(cudaEventDestroy(forked));
  LC_CUDA(cudaEventDestroy(joined));
  LC_CUDA(cudaStreamDestroy(side));
}

TEST_F(CudaLinearTest, OverlapsNothingButTheKernelBefore) {
  // Between products that may overlap: a fork after one of them, work on the other branch that
  // reads its result, and a join; with copies. As a replayed graph of many layers.
  constexpr int64_t kWidth = 2048, kRows = 2;
  const LinearCase c = Make(kRows, kWidth, kWidth, DType::kBF16, DType::kF32, false, false, 0);
  const LinearCase d = Make(kRows, kWidth, kWidth, DType::kBF16, DType::kF32, false, false, 0);
  const LinearPart first = Target(c), second = Target(d);
  const std::vector<float> ones(static_cast<size_t>(kWidth), 1.0f);
  const float* norm = Upload(ones);
  const MatrixView x = OnDevice(c.x), h = OnDevice(d.x);
  const auto side_stream = gpu_->CreateStream();
  const auto size = static_cast<size_t>(kRows * kWidth);
  const MatrixView side_y = MatrixView::Of(Poisoned<float>(size), kRows, kWidth);
  const MatrixView side_h = OnDevice(d.x);
  auto* spare = Poisoned<float>(size);
  CUstream_st* const handle = AsCuda(*stream_).handle();
  CUstream_st* const side = AsCuda(*side_stream).handle();
  cudaEvent_t forked = nullptr, joined = nullptr;
  LC_CUDA(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
  LC_CUDA(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
  // wait: every operation waits for the previous one.
  const auto layers = [&](bool wait) {
    const auto done = [&] {
      if (wait) LC_CUDA(cudaDeviceSynchronize());
    };
    ops::Linear(*stream_, x, first.weight, nullptr, first.y);
    done();
    for (int i = 0; i < 12; ++i) {
      RmsNorm(*stream_, first.y, norm, 1e-5f, 1, h);
      done();
      ops::Linear(*stream_, h, second.weight, nullptr, second.y);
      done();
      LC_CUDA(cudaEventRecord(forked, handle));
      LC_CUDA(cudaStreamWaitEvent(side, forked, 0));
      RmsNorm(*side_stream, second.y, norm, 1e-5f, 1, side_h);
      done();
      ops::Linear(*side_stream, side_h, first.weight, nullptr, side_y);
      done();
      LC_CUDA(cudaEventRecord(joined, side));
      RmsNorm(*stream_, second.y, norm, 1e-5f, 1, h);
      done();
      ops::Linear(*stream_, h, second.weight, nullptr, first.y, Epilogue::kAdd);
      done();
      if (i % 3 == 0) {
        LC_CUDA(cudaMemcpyAsync(spare, first.y.data, size * sizeof(float), cudaMemcpyDeviceToDevice,
                                handle));
        done();
      }
      LC_CUDA(cudaStreamWaitEvent(handle, joined, 0));
      Convert(*stream_, side_y, h);
      done();
      ops::Linear(*stream_, h, first.weight, nullptr, first.y, Epilogue::kAdd);
      done();
    }
  };
  layers(true);
  const std::vector<float> want = Download(first.y.Row<float>(0), size);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  LC_CUDA(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
  layers(false);
  LC_CUDA(cudaStreamEndCapture(handle, &graph));
  LC_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 20; ++i) {
    LC_CUDA(cudaGraphLaunch(executable, handle));
    EXPECT_EQ(Download(first.y.Row<float>(0), size), want) << "replay " << i;
  }
  LC_CUDA(cudaGraphExecDestroy(executable));
  LC_CUDA(cudaGraphDestroy(graph));
  LC_CUDA(cudaEventDestroy(forked));
  LC_CUDA(cudaEventDestroy(joined));
}

TEST_F(CudaLinearTest, SharingTheGpuChangesNoBit) {
  // Blocks claim tiles instead of taking even shares, in more launches than there are counters; in
  // a graph whose kernels overlap, while another stream occupies SMs now and then.
  const auto shared = gpu_->CreateStream();
  const auto beside = gpu_->CreateStream();
  ShareGpu(*shared);
  // With widths of 264 some warps have no part of the depth, and some blocks no tile.
  uint64_t key = 0;
  for (const auto& [rows, hidden, wide] : {std::tuple<int64_t, int64_t, int64_t>{1, 1544, 4104},
                                           {2, 264, 4104},
                                           {5, 1544, 4104},
                                           {1, 4104, 264},
                                           {11, 1544, 4104}}) {
    SCOPED_TRACE(fmt::format("{} rows, {} and {}", rows, hidden, wide));
    ++key;
    const LinearCase up = Make(rows, wide, hidden, DType::kBF16, DType::kBF16, false, false, 0);
    const LinearCase gate = Make(rows, wide, hidden, DType::kBF16, DType::kBF16, false, false, 0);
    const LinearCase down = Make(rows, hidden, wide, DType::kBF16, DType::kF32, true, true, 0);
    const LinearPart to_up = Target(up), to_gate = Target(gate), to_down = Target(down);
    const MatrixView x = OnDevice(up.x), other = OnDevice(down.x);
    const MatrixView y_beside = OnDevice(down.y);
    const auto size = static_cast<size_t>(rows * hidden);
    const auto layers = [&](Stream& stream) {
      LC_CUDA(cudaMemsetAsync(to_down.y.data, 0, size * sizeof(float), AsCuda(stream).handle()));
      for (int i = 0; i < 16; ++i) {
        const LinearPart both[] = {to_gate, to_up};
        ops::Linear(stream, x, both);
        ops::GatedLinear(stream, x, to_gate, to_up);
        ops::Linear(stream, to_gate.y, to_down.weight, to_down.bias, to_down.y, Epilogue::kAdd);
      }
    };
    layers(*stream_);
    const std::vector<float> want = Download(to_down.y.Row<float>(0), size);
    for (int round = 0; round < testing::Rounds(12); ++round) {
      for (int i = 0; i < 40; ++i) {
        ops::Linear(*beside, other, to_down.weight, nullptr, y_beside);
      }
      AsCuda(*shared).Run(key, [&] { layers(*shared); });
      shared->Synchronize();
      EXPECT_EQ(Download(to_down.y.Row<float>(0), size), want) << "round " << round;
    }
    beside->Synchronize();
  }
}

TEST_F(CudaLinearTest, SmsSetApartChangeNoBit) {
  std::string reason;
  const SmSplit* const split = SmSplit::Get(gpu_->index(), 8, &reason);
  if (split == nullptr) GTEST_SKIP() << reason;
  EXPECT_EQ(split, SmSplit::Get(gpu_->index(), 8, &reason));
  EXPECT_GE(split->few(), 8);
  EXPECT_EQ(split->few() + split->rest(), gpu_->sm_count());
  const std::shared_ptr<CudaStream> rest = split->StreamOfRest(/*first=*/false);
  CudaBranch branch(split->StreamOfFew(/*first=*/true), /*marks=*/1);
  EXPECT_EQ(AsCuda(branch.stream()).sm_count(), split->few());
  const LinearCase some = Make(3, 4104, 1544, DType::kBF16, DType::kF32, true, true, 0);
  const LinearCase other = Make(2, 1544, 4104, DType::kBF16, DType::kF32, true, true, 0);
  const LinearPart part = Target(some), other_part = Target(other);
  const MatrixView x = OnDevice(some.x), other_x = OnDevice(other.x);
  // y of both products, each added to the result of the previous one; `apart`: the other one runs
  // on the few SMs and this one in parallel on the rest, except for its last launch.
  const auto products = [&](Stream& stream, bool apart) {
    CudaStream& cuda = AsCuda(stream);
    for (const LinearPart& p : {part, other_part}) {
      LC_CUDA(cudaMemsetAsync(p.y.data, 0, static_cast<size_t>(p.y.rows * p.y.cols) * 4,
                              cuda.handle()));
    }
    if (apart) branch.Fork(stream);
    if (apart) cuda.Divert(rest);
    EXPECT_EQ(cuda.sm_count(), apart ? split->rest() : gpu_->sm_count());
    Stream& beside = apart ? branch.stream() : stream;
    for (int i = 0; i < 9; ++i) {
      if (i == 8 && apart) branch.JoinAll(stream);
      if (i == 8) cuda.Return();
      ops::Linear(stream, x, part.weight, part.bias, part.y, Epilogue::kAdd);
      if (i < 5) {
        ops::Linear(beside, other_x, other_part.weight, nullptr, other_part.y, Epilogue::kAdd);
      }
    }
  };
  const auto results = [&](Stream& stream) {
    stream.Synchronize();
    std::vector<float> y = Download(part.y.Row<float>(0), 3 * 4104);
    const std::vector<float> more = Download(other_part.y.Row<float>(0), 2 * 1544);
    y.insert(y.end(), more.begin(), more.end());
    return y;
  };
  products(*stream_, false);
  const std::vector<float> want = results(*stream_);
  // A stream whose blocks also claim tiles.
  const auto shared = gpu_->CreateStream();
  ShareGpu(*shared);
  for (int step = 0; step < 8; ++step) {
    shared->Run(1, [&] { products(*shared, true); });
    EXPECT_EQ(results(*shared), want) << "shared, step " << step;
  }
  for (int step = 0; step < 8; ++step) {  // issued, recorded, replayed
    stream_->Run(1, [&] { products(*stream_, true); });
    EXPECT_EQ(results(*stream_), want) << "step " << step;
    EXPECT_FALSE(AsCuda(*stream_).diverted());
  }
  // A step that fails while it is recorded also restores the stream.
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_THROW(stream_->Run(2,
                              [&] {
                                AsCuda(*stream_).Divert(rest);
                                ops::Linear(*stream_, x, part.weight, part.bias, part.y);
                                throw std::runtime_error("a step that fails");
                              }),
                 std::runtime_error);
    EXPECT_FALSE(AsCuda(*stream_).diverted());
    stream_->Synchronize();
    products(*stream_, false);
    EXPECT_EQ(results(*stream_), want) << "after failure " << attempt;
  }
}

TEST_F(CudaLinearTest, IsCapturedIntoAGraph) {
  PrepareLinear(*stream_);
  for (int64_t rows : {4, 48}) {
    SCOPED_TRACE(rows);
    LinearCase c = Make(rows, 72, 136, DType::kBF16, DType::kF32, true, false, 0);
    c.Refer(*target_);
    const LinearPart target = Target(c);
    const MatrixView x = OnDevice(c.x);
    CUstream_st* const handle = AsCuda(*stream_).handle();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    LC_CUDA(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
    ops::Linear(*stream_, x, target.weight, target.bias, target.y);
    LC_CUDA(cudaStreamEndCapture(handle, &graph));
    LC_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    LC_CUDA(cudaGraphLaunch(executable, handle));
    LC_CUDA(cudaGraphLaunch(executable, handle));
    Compare(c, target.y);
    LC_CUDA(cudaGraphExecDestroy(executable));
    LC_CUDA(cudaGraphDestroy(graph));
  }
}

}  // namespace
}  // namespace litecache::ops::cuda

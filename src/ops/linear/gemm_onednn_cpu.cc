#include "ops/linear/gemm_onednn_cpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "device/cpu/cpu_isa.h"
#include "ops/common/scratch.h"
#include "ops/common/widen.h"

namespace litecache::ops::cpu {
namespace {

using Type = dnnl::memory::data_type;

// With fewer tokens, the rows of the tiles (16) and oneDNN's packing of the weights do not pay off.
constexpr int64_t kMinTokens = 32;
// Tokens in a call, which bounds the converted x.
constexpr int64_t kOneDnnTokens = 1024;
// Outputs in a slice: at each call oneDNN packs a slice's weights into its scratch memory.
constexpr int64_t kSliceOutputs = 256;

// tokens, outputs, depth, strides of weight and y, bias?, add?
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool>;

struct Primitive {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
};

// oneDNN initializes its global tables on first use, guarded in ways that ThreadSanitizer cannot
// see in a library built without it; objects are rarely created, so they are created one at a time.
std::mutex& CreationMutex() {
  static std::mutex mutex;
  return mutex;
}

// A thread's oneDNN objects. Primitives are kept by shape: creating one takes milliseconds (it
// generates code), and finding it in oneDNN's own cache still takes tens of microseconds.
class Context {
 public:
  Context() {
    std::lock_guard lock(CreationMutex());
    engine_ = dnnl::engine(dnnl::engine::kind::cpu, 0);
    stream_ = dnnl::stream(engine_);
    // One thread per call, whichever OpenMP runtime oneDNN was built with: its setting is per
    // calling thread. A oneDNN built without OpenMP has no such function and needs none.
    using SetThreads = void (*)(int);
    if (auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
  }

  void Run(const Key& key, void* x, void* weight, const float* bias, float* y) {
    const Primitive& p = Get(key);
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, dnnl::memory(p.description.src_desc(), engine_, x)},
        {DNNL_ARG_WEIGHTS, dnnl::memory(p.description.weights_desc(), engine_, weight)},
        {DNNL_ARG_DST, dnnl::memory(p.description.dst_desc(), engine_, y)}};
    if (bias != nullptr) {
      arguments.emplace(DNNL_ARG_BIAS,
                        dnnl::memory(p.description.bias_desc(), engine_, const_cast<float*>(bias)));
    }
    p.primitive.execute(stream_, arguments);
    stream_.wait();
  }

 private:
  const Primitive& Get(const Key& key) {
    const auto found = primitives_.find(key);
    if (found != primitives_.end()) return found->second;
    std::lock_guard lock(CreationMutex());
    // Primitives for chunks of many lengths (the last one of every prompt) must not accumulate.
    constexpr size_t kMost = 256;
    if (primitives_.size() >= kMost) primitives_.clear();
    const auto [tokens, outputs, depth, weight_stride, y_stride, has_bias, add] = key;
    using Desc = dnnl::memory::desc;
    using Dims = dnnl::memory::dims;
    const Desc src({tokens, depth}, Type::bf16, Dims{depth, 1});
    const Desc weights({depth, outputs}, Type::bf16, Dims{1, weight_stride});
    const Desc dst({tokens, outputs}, Type::f32, Dims{y_stride, 1});
    dnnl::primitive_attr attributes;
    if (add) {
      dnnl::post_ops post;
      post.append_sum(1.0f);
      attributes.set_post_ops(post);
    }
    const auto description =
        has_bias
            ? dnnl::matmul::desc(src, weights, Desc({1, outputs}, Type::f32, Dims{outputs, 1}), dst)
            : dnnl::matmul::desc(src, weights, dst);
    const dnnl::matmul::primitive_desc primitive(description, attributes, engine_);
    return primitives_.emplace(key, Primitive{primitive, dnnl::matmul(primitive)}).first->second;
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Key, Primitive> primitives_;
};

}  // namespace

bool OneDnnIsFaster(const MatrixView& x, const MatrixView& weight) {
  return weight.dtype == DType::kBF16 && x.rows >= kMinTokens && HasAmxBf16();
}

uint64_t OneDnnScratchBytes(int64_t rows, int64_t depth) {
  if (!HasAmxBf16()) return 0;
  return static_cast<uint64_t>(std::min(rows, kOneDnnTokens) * depth) * sizeof(bf16);
}

void GemmOneDnn(ThreadPool& pool, const MatrixView& x, const MatrixView& weight, const float* bias,
                const MatrixView& y, Epilogue epilogue) {
  LC_CHECK(weight.dtype == DType::kBF16);
  static thread_local Scratch x_scratch;
  const int64_t slices = (weight.rows + kSliceOutputs - 1) / kSliceOutputs;
  for (int64_t first = 0; first < x.rows; first += kOneDnnTokens) {
    const int64_t tokens = std::min(kOneDnnTokens, x.rows - first);
    auto* rows = x_scratch.Reserve<bf16>(static_cast<size_t>(tokens * x.cols));
    pool.ParallelFor(tokens, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        NarrowToBf16(x.Row<float>(first + t), x.cols, rows + t * x.cols);
      }
    });
    pool.ParallelFor(slices, 1, [&](int64_t begin, int64_t end, int) {
      static thread_local Context context;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n0 = i * kSliceOutputs;
        const int64_t outputs = std::min(kSliceOutputs, weight.rows - n0);
        context.Run({tokens, outputs, x.cols, weight.stride, y.stride, bias != nullptr,
                     epilogue == Epilogue::kAdd},
                    rows, weight.Row<bf16>(n0), bias != nullptr ? bias + n0 : nullptr,
                    y.Row<float>(first) + n0);
      }
    });
  }
}

}  // namespace litecache::ops::cpu

// Matrix products of a warpgroup (four warps) with both operands in shared memory, and the barriers
// through which warps that copy operands and warps that multiply them wait for each other (sm_90a).
//
// Products run asynchronously, in groups, as copies do: until a group has ended, its sums must not
// be touched and its operands must stay.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

// Operands in shared memory: rows of 64 bf16, of which products take 16 at a time, as
// SwizzledOffset() places them. The address is a multiple of 1024, plus 32 for each 16 elements
// that come before; kOperandStep is what these 32 bytes are in the value returned.
inline constexpr uint64_t kOperandStep = 32 >> 4;
__device__ inline uint64_t MatrixOperand(uint32_t address) {
  constexpr uint64_t kEightRows = 1024 >> 4;  // from eight rows to the next eight
  constexpr uint64_t kSwizzle128 = 1;
  // The distance between columns of 64 elements is not used: a product has one of them.
  return kSwizzle128 << 62 | kEightRows << 32 | uint64_t{1} << 16 | address >> 4;
}

// Before a group's first product: orders earlier accesses to the registers of its sums.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends the group.
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending groups of this warpgroup have not ended.
template <int kPending>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// After the wait for their last group: the compiler reads sums only from here on.
template <int kBlocks>
__device__ inline void TakeSums(float (&sums)[kBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[n][i])::"memory");
  }
}

// sums = x weights^T, plus the sums before if `add`: [64 rows of x][rows of weights], 16 elements
// deep. Warp w of the warpgroup has rows 16 w on, and of these each thread has, for eight outputs
// at a time, what mma.m16n8 would give it.
#define LC_BLOCK(n) "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])
#define LC_SUMS(n)                                                                 \
  LC_BLOCK(n), LC_BLOCK(n + 1), LC_BLOCK(n + 2), LC_BLOCK(n + 3), LC_BLOCK(n + 4), \
      LC_BLOCK(n + 5), LC_BLOCK(n + 6), LC_BLOCK(n + 7)
__device__ inline void MultiplyAdd(float (&sums)[16][4], uint64_t x, uint64_t weights, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, add, 1, 1, 0, 0;\n"
      "}"
      : LC_SUMS(0), LC_SUMS(8)
      : "l"(x), "l"(weights), "r"(static_cast<int>(add)));
}
__device__ inline void MultiplyAdd(float (&sums)[32][4], uint64_t x, uint64_t weights, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "%128, %129, add, 1, 1, 0, 0;\n"
      "}"
      : LC_SUMS(0), LC_SUMS(8), LC_SUMS(16), LC_SUMS(24)
      : "l"(x), "l"(weights), "r"(static_cast<int>(add)));
}
#undef LC_SUMS
#undef LC_BLOCK

// Changes how many registers each thread of this warpgroup has: all of a block's warpgroups do that
// once, and together must have no more than what the block started with.
template <int kRegisters>
__device__ inline void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Before products with operands that other threads have copied, when their barrier has been waited
// for: products read shared memory in another way than threads do.
__device__ inline void SeeCopies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A barrier that ends a phase after `count` arrivals; WaitForRuns() (bulk_copies.cuh) waits.
__device__ inline void InitBarrier(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives when all of this thread's copies so far (CopyChunk) are there.
__device__ inline void ArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace litecache::ops::cuda

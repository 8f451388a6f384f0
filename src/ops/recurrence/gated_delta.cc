#include "ops/recurrence/gated_delta.h"

#include "device/cpu/cpu_device.h"
#include "ops/recurrence/gated_delta_check.h"
#include "ops/recurrence/gated_delta_cpu.h"

namespace litecache::ops {

void GatedDelta(Stream& stream, const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                std::span<const GatedDeltaSequence> sequences, const GatedDeltaInputs& in,
                const MatrixView& out) {
  LC_CHECK(stream.device_type() == DeviceType::kCpu,
           "on a GPU, sequences are in the device's memory: gated_delta_cuda.h");
  CheckGatedDelta(shape, weights, in, out);
  LC_CHECK(out.dtype == DType::kF32);
  for (const GatedDeltaSequence& s : sequences) {
    LC_CHECK(s.rows >= 1 && s.past >= 0 && s.first_row >= 0 && s.first_row + s.rows <= out.rows &&
                 s.state != nullptr,
             "rows [{}, {}) of {}, {} tokens before", s.first_row, s.first_row + s.rows, out.rows,
             s.past);
  }
  if (sequences.empty()) return;
  cpu::GatedDelta(AsCpu(stream).pool(), shape, weights, sequences, in, out);
}

}  // namespace litecache::ops

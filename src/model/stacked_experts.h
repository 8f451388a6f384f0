// The experts of a directory in which a layer's are stacked, each part's in one tensor, gate and up
// in turns (gpt-oss):
//   experts.gate_up_proj [experts, in, 2 out], experts.down_proj [experts, in, out]: numbers; or
//   experts.gate_up_proj_blocks U8 [experts, 2 out, in / 32, 16] and _scales U8 [experts, 2 out,
//   in / 32], and the same of down_proj: MXFP4, of whose 32 codes a byte has two neighbours.
//   experts.gate_up_proj_bias [experts, 2 out], experts.down_proj_bias [experts, out].
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "io/checkpoint.h"
#include "model/stored_matrix.h"

namespace litecache::model {

// The matrix of one expert; name: "….experts.3.gate_proj.weight", its rows [rows, cols]. Null: the
// name is not an expert's, or the checkpoint does not stack them. Throws FileError for tensors of
// other types or shapes. The checkpoint must outlive the result.
std::unique_ptr<StoredMatrix> FindStackedExpert(const io::Checkpoint& checkpoint,
                                                const std::string& name, int64_t rows,
                                                int64_t cols);

// Numbers that are `step` apart in a tensor.
struct StackedBias {
  io::Checkpoint::Tensor tensor;
  int64_t first = 0, step = 1;
};
// The biases of a part of all experts; name: "….experts.*.gate_proj.bias", `n` values. None: the
// name is not of this form. Throws FileError for a tensor that is missing or does not hold n values
// of the part.
std::optional<StackedBias> FindStackedBias(const io::Checkpoint& checkpoint,
                                           const std::string& name, int64_t n);

}  // namespace litecache::model

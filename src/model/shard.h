// Tensor parallelism as Megatron-LM divides a transformer (Shoeybi et al. 2019): the rows of the
// matrices that make heads and feed-forward activations, the columns of those that read them, and
// the rows of the vocabulary. What is left is on every rank.
//
// Of experts each rank has a part of every one, so that all ranks have the same work, whichever a
// row is sent to; or, where their columns cannot be divided, because they are too few or within
// blocks of quantized weights, it has some of the experts as a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kv/heads/profile.h"
#include "model/config.h"
#include "model/weights.h"

namespace litecache::model {

// The config of one rank's part. KV heads are divided while there are enough; beyond that, ranks
// share one. types: of the whole model's matrices; they decide how experts are divided. Throws
// InvalidArgument where something cannot be divided evenly, and Unsupported where a norm goes over
// KV heads that ranks share.
ModelConfig ShardOf(const ModelConfig& whole, const WeightTypes& types, int rank, int ranks);

// The heads of a part among those of the whole model; those of another rank.
kv::HeadRange HeadsOf(const ModelConfig& part);
kv::HeadRange HeadsOfRank(const ModelConfig& part, int rank);

// The rows of the vocabulary that a rank has: as many on each, the last one possibly fewer.
struct VocabularyPart {
  int64_t first = 0, rows = 0;
  int64_t padded = 0;  // rows of each rank but the last
};
VocabularyPart VocabularyOf(const ModelConfig& config);

// Where a rank's part of a tensor is in the whole one.
struct TensorPart {
  struct Range {
    int64_t begin = 0, count = 0;
  };
  std::vector<Range> rows, cols;  // one behind another
  int64_t whole_rows = 0, whole_cols = 0;
  // Of a bias that is added to a sum over the ranks: only rank 0 adds it.
  bool zero = false;
  bool whole() const { return rows[0].count == whole_rows && cols[0].count == whole_cols; }
};
// rows, cols: of the part, as the decoder requests it. name: Hugging Face's, with ".weight" or
// ".bias".
TensorPart PartOf(const ModelConfig& config, const std::string& name, int64_t rows, int64_t cols);
// The type of a part of a matrix of type `whole`, without data. Throws Unsupported where columns
// would be cut within a quantized block.
MatrixView TypeOfPart(const ModelConfig& config, const MatrixView& whole, const std::string& name,
                      const TensorPart& part);

// A store of a rank's parts of the tensors of `source`. A part of rows is a view into the whole
// matrix, one of columns a copy. passing: as for OpenCheckpointWeights().
std::unique_ptr<WeightStore> ShardWeights(Device& device, const ModelConfig& config,
                                          std::unique_ptr<WeightStore> source, bool passing);

}  // namespace litecache::model

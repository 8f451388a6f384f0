// State of policy pqcache on a GPU for tests.
#include "lab/policies/pqcache/pq_cache_cuda.h"

namespace litecache::lab::pqcache {

using ops::cuda::PqSequence;

Diagnosis::Selected CudaPqCache::SelectedRows(int64_t sequence, int64_t head) {
  Selected result;
  const StepSequence& part = decoding_.at(static_cast<size_t>(sequence));
  if (sequences_.Get(part.id).index == nullptr) return result;
  const int64_t pair = sequence * shape_.layout.kv_heads + head;
  int32_t count = 0;
  device_.Download(&count, work_arrays_.selected_count + pair, sizeof(count));
  std::vector<int32_t> positions(static_cast<size_t>(count)), rows(positions.size());
  device_.Download(positions.data(), work_arrays_.selected + pair * work_rows_,
                   positions.size() * sizeof(int32_t));
  device_.Download(rows.data(), work_arrays_.listed + pair * work_rows_,
                   rows.size() * sizeof(int32_t));
  const int32_t staging = parameters_->host<PqSequence>()[sequence].staging_begin;
  for (size_t i = 0; i < positions.size(); ++i) {
    (rows[i] < staging ? result.hits : result.misses).push_back(positions[i]);
  }
  return result;
}

std::vector<float> CudaPqCache::Centroids(SequenceId id, int64_t layer, int64_t head) {
  std::vector<float> centroids(
      static_cast<size_t>(shape_.codes.clusters() * shape_.layout.head_dim));
  device_.Download(centroids.data(), sequences_.Codebook(sequences_.Get(id), layer, head),
                   centroids.size() * sizeof(float));
  return centroids;
}

std::vector<uint8_t> CudaPqCache::Codes(SequenceId id, int64_t layer, int64_t head,
                                        int64_t tokens) {
  const ops::PagedMetadata codes = sequences_.CodesOf(sequences_.Get(id), layer, head);
  const int64_t pages = shape_.CodeTable().BlocksFor(tokens);
  const auto page_bytes = static_cast<size_t>(shape_.code_tokens * shape_.codes.token_bytes());
  std::vector<std::byte> bytes(static_cast<size_t>(pages) * page_bytes);
  std::vector<std::byte*> lists;
  for (int64_t page = 0; page < pages; ++page) {
    lists.push_back(bytes.data() + static_cast<size_t>(page) * page_bytes);
    device_.Download(lists.back(), codes.pages[page], page_bytes);
  }
  std::vector<uint8_t> all;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t part = 0; part < shape_.codes.subspaces; ++part) {
      all.push_back(*shape_.codes.Code({lists.data(), shape_.code_tokens}, t, part));
    }
  }
  return all;
}

int64_t CudaPqCache::SlotOf(SequenceId id, int64_t layer, int64_t block) {
  Sequence& sequence = sequences_.Get(id);
  for (size_t i = 0; i < decoding_.size(); ++i) {
    if (decoding_[i].id != id || sequence.index == nullptr ||
        sequence.layers[static_cast<size_t>(layer)].counted_at == decoding_[i].past) {
      continue;
    }
    std::vector<int32_t> uses(static_cast<size_t>(work_blocks_));
    device_.Download(uses.data(),
                     uses_->device<int32_t>() +
                         (layer * work_sequences_ + static_cast<int64_t>(i)) * work_blocks_,
                     uses.size() * sizeof(int32_t));
    CountUses(&sequence, &TablesOf(id), layer, decoding_[i].past, uses.data());
  }
  return sequence.layers[static_cast<size_t>(layer)].blocks.SlotOf(block);
}

}  // namespace litecache::lab::pqcache

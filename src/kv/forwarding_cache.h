// A cache that forwards every call to another one: the base of those that observe a model.
#pragma once

#include "kv/cache.h"

namespace litecache::kv {

class ForwardingCache : public Cache {
 public:
  // `inner` must outlive this.
  explicit ForwardingCache(Cache& inner) : inner_(inner) {}

  std::string_view policy() const override { return inner_.policy(); }
  const Layout& layout() const override { return inner_.layout(); }
  TierBytes BytesFor(int64_t tokens) const override { return inner_.BytesFor(tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return inner_.ForkBytesFor(shared, tokens);
  }
  void AllocateAhead(const TierBytes& bytes) override { inner_.AllocateAhead(bytes); }
  SequenceId Create() override { return inner_.Create(); }
  SequenceId Fork(SequenceId parent) override { return inner_.Fork(parent); }
  void Release(SequenceId id) override { inner_.Release(id); }
  int64_t Length(SequenceId id) const override { return inner_.Length(id); }
  bool SelectsRows() const override { return inner_.SelectsRows(); }
  bool CanTruncate() const override { return inner_.CanTruncate(); }
  void Truncate(SequenceId id, int64_t tokens) override { inner_.Truncate(id, tokens); }
  void BeginStep(const Step& step) override { inner_.BeginStep(step); }
  int64_t PredictionSource(int64_t layer) const override { return inner_.PredictionSource(layer); }
  void Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                float scale) override {
    inner_.Prefetch(stream, layer, step, q, scale);
  }
  bool WantsInputs() const override { return inner_.WantsInputs(); }
  void KeepInputs(Stream& stream, int64_t layer, const Step& step, const MatrixView& x,
                  KeyValueProjection* projection) override {
    inner_.KeepInputs(stream, layer, step, x, projection);
  }
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    inner_.Attend(stream, layer, step, q, k, v, softmax, out);
  }
  void Recur(Stream& stream, int64_t layer, const Step& step, const ops::GatedDeltaWeights& weights,
             const ops::GatedDeltaInputs& in, const MatrixView& convolved,
             const MatrixView& out) override {
    inner_.Recur(stream, layer, step, weights, in, convolved, out);
  }
  void EndStep(const Step& step) override { inner_.EndStep(step); }
  Stats GetStats() const override { return inner_.GetStats(); }
  std::span<const HeadCounters> Heads() const override { return inner_.Heads(); }

 protected:
  Cache& inner() { return inner_; }

 private:
  Cache& inner_;
};

}  // namespace litecache::kv

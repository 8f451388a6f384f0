// A cache that forwards every call to another one: the base of the profile's observers.
#pragma once

#include "kv/cache.h"

namespace litecache::profile {

class ForwardingCache : public kv::Cache {
 public:
  // `inner` must outlive this.
  explicit ForwardingCache(kv::Cache& inner) : inner_(inner) {}

  std::string_view policy() const override { return inner_.policy(); }
  const kv::Layout& layout() const override { return inner_.layout(); }
  kv::TierBytes BytesFor(int64_t tokens) const override { return inner_.BytesFor(tokens); }
  kv::TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return inner_.ForkBytesFor(shared, tokens);
  }
  void AllocateAhead(const kv::TierBytes& bytes) override { inner_.AllocateAhead(bytes); }
  kv::SequenceId Create() override { return inner_.Create(); }
  kv::SequenceId Fork(kv::SequenceId parent) override { return inner_.Fork(parent); }
  void Release(kv::SequenceId id) override { inner_.Release(id); }
  int64_t Length(kv::SequenceId id) const override { return inner_.Length(id); }
  void BeginStep(const kv::Step& step) override { inner_.BeginStep(step); }
  int64_t PredictionSource(int64_t layer) const override { return inner_.PredictionSource(layer); }
  void Prefetch(Stream& stream, int64_t layer, const kv::Step& step, const MatrixView& q,
                float scale) override {
    inner_.Prefetch(stream, layer, step, q, scale);
  }
  bool WantsInputs() const override { return inner_.WantsInputs(); }
  void KeepInputs(Stream& stream, int64_t layer, const kv::Step& step, const MatrixView& x,
                  kv::KeyValueProjection* projection) override {
    inner_.KeepInputs(stream, layer, step, x, projection);
  }
  void Attend(Stream& stream, int64_t layer, const kv::Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, float scale,
              const MatrixView& out) override {
    inner_.Attend(stream, layer, step, q, k, v, scale, out);
  }
  void EndStep(const kv::Step& step) override { inner_.EndStep(step); }
  kv::Stats GetStats() const override { return inner_.GetStats(); }
  std::span<const kv::HeadCounters> Heads() const override { return inner_.Heads(); }

 protected:
  kv::Cache& inner() { return inner_; }

 private:
  kv::Cache& inner_;
};

}  // namespace litecache::profile

#include "kv/litecache/pulls_cuda.h"

#include "base/logging.h"
#include "device/sections.h"
#include "kv/litecache/pull_split_cuda.h"

namespace litecache::kv {

LinkPulls::LinkPulls(CudaDevice& device, const KvOptions& options,
                     std::span<const uint8_t> prefetched, int64_t ahead)
    : prefetched_(prefetched.begin(), prefetched.end()),
      host_(device),
      engine_(CreateTransferEngine(device, host_, TransferOptionsOf(options))),
      split_(SplitOfPulls(device, options, ahead)),
      always_apart_(PullsAlwaysApart()),
      link_(device, kRefreshedMarks + kOtherMarks, /*first=*/true) {
  if (options.transfer != "auto") LogInfo("transfers: {}", engine_->Description());
  if (split_ == nullptr) return;
  rest_ = split_->StreamOfRest(/*first=*/false);
  apart_pulls_.emplace(split_->StreamOfFew(/*first=*/true), kRefreshedMarks);
  std::string reason;
  step_pull_ = StepPull::Create(device, host_, *split_, static_cast<int64_t>(prefetched_.size()),
                                TransferOptionsOf(options).deadline_ns, &reason);
  if (step_pull_ == nullptr) LogInfo("each layer has its own pull kernel: {}", reason);
}

void LinkPulls::Reserve(const CudaLayers& layers) {
  if (step_pull_ != nullptr) step_pull_->SetLayers(layers.all(), prefetched_);
  engine_->Reserve(layers.sequences() * layers.shape().kv_heads, layers.shape().max_rows);
}

void LinkPulls::BeginStep(int64_t decoding, int64_t prefilling, int64_t context) {
  // Split if one sequence decodes alone, or several long ones, whose rows keep the link busy most
  // of the time (6 of 131,000 tokens: 13.4 instead of 14.4 ms a step); with LITECACHE_PULL_SMS
  // always. Prompt chunks need all SMs, and so do selections for many short sequences (16 of 8K:
  // 8.5 to 9.0 ms with the split instead of 8.0 to 8.4).
  apart_ = split_ != nullptr && decoding > 0 && prefilling == 0 &&
           (always_apart_ || decoding == 1 || context > kLongContext);
  if (decoding > 0) engine_->BeginStep();
}

void LinkPulls::Start(Stream& stream, const uint32_t* number) {
  if (step_pull_ != nullptr) step_pull_->BeginStep(stream, apart_, number);
  if (apart_) AsCuda(stream).Divert(rest_);
}

void LinkPulls::Pull(Stream& stream, const ops::cuda::StepView& step, const CudaLayers& layers,
                     int64_t layer) {
  Mark(stream, Section::kTransfer);
  engine_->Move(stream, step, layers.shape(), layers.at(layer), layer);
  Mark(stream, Section::kManagement);
}

void LinkPulls::PullAhead(Stream& main, Stream& decisions, const ops::cuda::StepView& step,
                          const CudaLayers& layers, int64_t layer) {
  if (OnePull()) {
    step_pull_->Listed(main, pulls(), decisions, step, layers.shape(), layer);
    return;
  }
  pulls().Fork(decisions);
  Pull(pulls().stream(), step, layers, layer);
  pulls().Mark(RefreshedMark(layer));
}

void LinkPulls::Await(Stream& stream, int64_t layer) {
  if (OnePull()) {
    step_pull_->Await(stream, layer);
  } else {
    pulls().Join(stream, RefreshedMark(layer));
  }
}

void LinkPulls::Pass(Stream& stream, int64_t layer) {
  if (OnePull() && prefetched_[static_cast<size_t>(layer)]) step_pull_->Pass(stream, layer);
}

std::vector<CudaBranch*> LinkPulls::Branches() {
  std::vector<CudaBranch*> all{&link_};
  if (apart_pulls_) all.push_back(&*apart_pulls_);
  return all;
}

std::optional<std::string> LinkPulls::Check() {
  std::optional<std::string> failure = engine_->Check();
  if (!failure && step_pull_ != nullptr) failure = step_pull_->Check();
  return failure;
}

}  // namespace litecache::kv

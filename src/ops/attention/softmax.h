// How the scores of an attention become weights.
#pragma once

namespace litecache::ops {

// A query attends row r with the weight exp(scale q.K_r) / (exp(sink) + sum over the rows it sees),
// without `sinks` with that of the rows alone. A sink is a logit that a model has learned for a
// query head (gpt-oss): it takes weight from the rows and has no value.
struct Softmax {
  // A scale alone is the softmax of most models.
  Softmax(float score_scale, const float* sink_logits = nullptr)  // NOLINT(*-explicit-*)
      : scale(score_scale), sinks(sink_logits) {}

  float scale;
  const float* sinks;  // [q_heads] f32, memory of the stream's device; null: there are none
};

}  // namespace litecache::ops

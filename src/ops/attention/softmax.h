// How the scores of an attention become weights.
#pragma once

namespace litecache::ops {

// A query attends row r with the weight exp(s_r) / (exp(sink) + sum over the rows it sees), where
// the score s_r is scale q.K_r, or with a cap cap tanh(scale q.K_r / cap) (Gemma 2). Without
// `sinks` the sum is that of the rows alone. A sink is a logit that a model has learned for a query
// head (gpt-oss): it takes weight from the rows and has no value.
struct Softmax {
  // A scale alone is the softmax of most models.
  Softmax(float score_scale, const float* sink_logits = nullptr,  // NOLINT(*-explicit-*)
          float score_cap = 0)
      : scale(score_scale), sinks(sink_logits), cap(score_cap) {}

  float scale;
  const float* sinks;  // [q_heads] f32, memory of the stream's device; null: there are none
  float cap;           // of scores; 0: none
};

}  // namespace litecache::ops

// How the KV cache is kept: policy, budgets, retriever, thresholds. One declaration for the engine,
// the command line and programs that drive the KV subsystem alone (litecache/kv_cache.h).
#pragma once

#include <any>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <typeindex>

#include "litecache/options.h"

namespace litecache {

// Rows a KV head keeps beside its sink and recent tokens: a share of the tokens so far, or a
// number.
struct KvBudget {
  double share = 0.10;  // used when tokens == 0; in (0, 1]
  int64_t tokens = 0;   // rows, whatever the context

  // "10%", "0.1" (a share), "2048", "4k" (tokens). Throws InvalidArgument, which names `who`.
  static KvBudget Parse(const std::string& text, std::string_view who = "KV budget");
  // Rows for a sequence of `context` tokens, at least 1: ceil(share * context), or `tokens`.
  int64_t RowsFor(int64_t context) const;
  std::string ToString() const;  // what Parse reads
};

// What KvOptions.policy may be.
std::span<const std::string_view> KvPolicies();

// Policy kvpr: keys and values of the first tokens are recomputed from activations while the others
// travel.
struct KvprOptions {
  int64_t split = -1;   // tokens to recompute (l of KVPR eq. 12); -1: the scheduler's l*
  bool chunked = true;  // recomputation also overlaps the activations' own transfer (false: eq. 11)
};

// Settings of policies that are no part of LiteCache, by their type.
class PolicySettings {
 public:
  // T's defaults until something else is written.
  template <class T>
  T& Of() {
    std::any& settings = all_[typeid(T)];
    if (!settings.has_value()) settings = T();
    return *std::any_cast<T>(&settings);
  }
  template <class T>
  const T& Of() const {
    static const T defaults;
    const auto found = all_.find(typeid(T));
    return found == all_.end() ? defaults : *std::any_cast<T>(&found->second);
  }

 private:
  std::map<std::type_index, std::any> all_;
};

struct KvOptions {
  std::string policy = "full";  // one of KvPolicies()

  // ---- policy litecache: QSAC (litecache section 4) ----
  KvBudget budget;             // top-k rows a head
  int64_t sink_tokens = 4;     // first tokens, always attended
  int64_t recent_tokens = 64;  // last tokens, the newest included, always attended
  // Tokens that leave the recent window after a head's last refresh stay attended until its next
  // one, at most this many: a retrieval could have chosen them, reused rows cannot. 0: the papers'.
  int64_t carry_tokens = 256;
  // Where a head's reuse threshold comes from:
  //   fitted      the lowest threshold that keeps `keep` of the attention mass, from the profile
  //   importance  eq. 3-5 from eta, p and the head's importance
  //   fixed       eta for every head
  //   auto        importance where heads differ in it, else fitted where there are curves, else
  //               fixed: at equal accuracy importance reuses most (lab/notes/accuracy.md)
  std::string thresholds = "auto";
  double eta = 0.9;    // upper bound of the thresholds (eq. 3); 1: every step refreshes; -1: none
  double p = 3;        // exponent of the importance (eq. 4)
  double keep = 0.99;  // for fitted: share of the attention mass a fresh retrieval would have held
  // How similarities of a group's query heads become one (eq. 2):
  //   importance (weighted harmonic mean) | harmonic | mean | min
  std::string aggregation = "importance";

  // ---- resident heads ----
  // Heads whose whole KV stays on the device: "formula" (CLO eq. 12-13, from the profile's link and
  // layer time), "none", or a number of heads, the hardest to reuse first. Layer 0 comes on top of
  // it: nothing can be prefetched for it.
  std::string resident_heads = "0";
  bool resident_first_layer = true;
  bool resident_full_attention = false;  // resident heads attend every row instead of their top-k
  double epsilon = 0.1;                  // tolerance of the reuse difficulty (CLO eq. 11)
  int64_t dense_layers = 0;              // first layers that are resident and attend every row
  // How many layers ahead a layer is looked up, and its rows fetched, with a query predicted from
  // that layer's input: 0 (off) | 1 (on) | 2 | 3 | 4 | auto (0: a predicted query costs hits)
  std::string prefetch = "auto";

  // ---- retriever ----
  std::string retriever = "auto";  // exact | hata | quest | loki | auto: hata
  int hata_bits = 0;               // 128 | 256 | 0: 256, or what the profile has
  bool hata_norms = true;          // weight scores by the keys' norms
  // How a group's query heads come to one score: sum (HATA's: of their differing bits), softmax (of
  // each head's estimated products, then summed: what one head needs is not outvoted by the
  // others, lab/notes/accuracy.md), auto: softmax where there are norms.
  std::string hata_group = "auto";
  int loki_rank = 0;  // leading components; 0: head_dim / 4

  // ---- beyond the papers ----
  bool delta_update = true;  // only rows that are not cached yet travel
  double slots = 1.0;        // slots a head as a multiple of its budget, >= 1: rows that left the
                             // top-k stay until their slot is needed
  std::string host_rows = "auto";  // auto (as on the device) | fp8 | int8, with a scale a
                                   // row | int4, with a minimum and a step a group of 64 values
  // How rows come to a GPU (policies.md): gpu-pull (kernels read them) | cpu-push (CPU threads
  // write what the GPU asks for) | copy (gathered and copied between kernels) | auto: gpu-pull. On
  // the CPU auto alone.
  std::string transfer = "auto";
  int transfer_threads = 0;  // that gather rows for cpu-push and copy; 0: the cores but one, <= 16

  // ---- other policies ----
  // Policies that bring whole layers, on a GPU: a step's sequences pass through each layer in this
  // many groups, whose rows travel one after another (FlexGen's num_gpu_batches); 1: all together.
  int64_t batch_groups = 1;
  KvprOptions kvpr;
  PolicySettings settings;

  bool measure_recall = false;  // compare what is attended with the exact top-k, each step (slow)

  // Profile file; "auto": litecache-profile.safetensors in the model's directory where it exists;
  // "none".
  std::string profile = "auto";

  // Hard caps in bytes; 0: from the engine's memory budget. Device: weights, buffers, resident
  // rows, cached rows, retriever metadata. Host: the host store.
  uint64_t device_memory = 0;
  uint64_t host_memory = 0;

  // Throws InvalidArgument naming the option, its value and what it may be.
  void Validate(OptionNames names = OptionNames::kMembers) const;
};

}  // namespace litecache

// Options of the KV cache: policy, budgets, retriever, thresholds. Used by the engine, the command
// line and programs that use the KV cache alone (litecache/kv_cache.h).
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

// Rows that a KV head keeps beside its sink and recent tokens: a share of the tokens so far, a
// fixed number, or as many as it needs.
struct KvBudget {
  double share = 0.10;  // used when tokens == 0; in (0, 1]
  int64_t tokens = 0;   // rows, independent of the context
  // Above 0: the share is that of this context, and rows grow with the context's square root. The
  // rows that a head needs for the same divergence grow more slowly than that.
  int64_t share_context = 0;
  // A selection takes the rows that hold at least an average candidate's share of the head's
  // attention: at most those above, at least a tenth of them.
  bool by_need = false;

  // Parses "10%", "0.1" (a share), "10%@8k" (a share of 8,192 tokens, growing and shrinking with
  // the context's square root), "2048" or "4k" (tokens), or "auto": by need, at most 20%. Throws
  // InvalidArgument, which names `who`.
  static KvBudget Parse(const std::string& text, std::string_view who = "KV budget");
  // The most rows for a sequence of `context` tokens, at least 1: ceil(share * context),
  // ceil(share * sqrt(share_context * context)), or `tokens`.
  int64_t RowsFor(int64_t context) const;
  std::string ToString() const;  // in the form that Parse reads
};

// The possible values of KvOptions.policy.
std::span<const std::string_view> KvPolicies();

// Policy kvpr: keys and values of the first tokens are recomputed from activations while the others
// are transferred.
struct KvprOptions {
  int64_t split = -1;   // tokens to recompute (l of KVPR eq. 12); -1: the scheduler's l*
  bool chunked = true;  // recomputation also overlaps the activations' own transfer (false: eq. 11)
};

// Settings of policies outside LiteCache, by type.
class PolicySettings {
 public:
  // The settings of type T, default-constructed until they are set.
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
  std::string policy = "full";  // one of KvPolicies(); for an engine "auto", too (option_table.cc)

  // How prompts are attended: dense: every row; sparse: blocks of rows that together have
  // prefill_mass of the attention, by an estimate (ops/sparse_prefill); auto: sparse from 32,768
  // tokens on. Policies full and litecache.
  std::string prefill = "dense";
  double prefill_mass = 0.99;

  // ---- policy litecache: QSAC (LiteCache section 4) ----
  KvBudget budget = {.share = 0.15, .share_context = 8192};  // top-k rows per head
  int64_t sink_tokens = 4;                                   // first tokens, always attended
  int64_t recent_tokens = 64;  // last tokens, including the newest, always attended
  // Tokens that have left the recent window since a head's last refresh stay attended until its
  // next one, at most this many: a retrieval could select them, reused rows cannot contain them. 0:
  // none, as in the papers.
  int64_t carry_tokens = 256;
  // How a head's reuse threshold is determined:
  //   fitted      the lowest threshold that keeps `keep` of the attention mass, from the profile
  //   importance  eq. 3-5 from eta, p and the head's importance
  //   fixed       eta for every head
  //   auto        importance if heads differ in it, otherwise fitted if there are curves, otherwise
  //               fixed: at equal accuracy importance reuses most (lab/notes/accuracy.md)
  std::string thresholds = "auto";
  double eta = 0.85;   // upper bound of the thresholds (eq. 3); 1: every step refreshes; -1: none
  double p = 3;        // exponent of the importance (eq. 4)
  double keep = 0.99;  // for fitted: share of the attention mass of a fresh retrieval
  // How the similarities of a group's query heads are combined (eq. 2):
  //   importance (weighted harmonic mean) | harmonic | mean | min
  std::string aggregation = "importance";

  // ---- resident heads ---- Heads with all their KV on the device: "formula" (CLO eq. 12-13, from
  // the profile's link rate and layer time), "none", a number of heads, hardest to reuse first, or
  // "all", of which those that are not resident for another reason attend their top-k. "auto" is
  // "all", with resident_whole = 65536, for an engine on a GPU that has room for the whole context
  // of all its sequences; elsewhere it is "none".
  // In addition layer 0 is resident, and with prefetch = auto on a GPU every layer that is not
  // predicted, since nothing hides its transfers; with "all" nothing is transferred, and only
  // layer 0 attends every row.
  std::string resident_heads = "auto";
  bool resident_first_layer = true;
  bool resident_full_attention = true;  // resident heads attend every row instead of their top-k
  // Resident heads attend every row in steps whose sequences have no more tokens together.
  int64_t resident_whole = 0;
  double epsilon = 0.1;  // tolerance of the reuse difficulty (CLO eq. 11)
  // Number of leading layers that are resident and attend every row.
  int64_t dense_layers = 0;
  // How many layers ahead rows are looked up and fetched, with a query predicted from the input of
  // the earlier layer: 0 (off) | 1 (on) | 2 | 3 | 4 | a list with every layer's source, or - for
  // none | auto: on a GPU up to 2, measured by an engine at start; on a CPU 0
  std::string prefetch = "auto";
  // A head whose rows were chosen with a predicted query is looked up again with the actual one,
  // and chooses anew if that misses: every head attends rows of a query within its threshold.
  bool verify_predictions = true;
  // The least threshold of that check for rows chosen with this step's prediction: an error of a
  // prediction costs more attention mass than a step of time that turns the query as far
  // (lab/notes/accuracy.md).
  double prediction_eta = 0.9;
  // By how much the check's threshold is below the head's: a head is refreshed with a predicted
  // query, which is hidden behind the layers before, rather than after the check, which is not.
  double prediction_margin = 0.03;

  // ---- retriever ----
  std::string retriever = "auto";  // exact | hata | keys | keys2 | quest | loki | auto: keys
  int hata_bits = 0;               // 128 | 256 | 0: 256, or the profile's width
  bool hata_norms = true;          // weight scores by the keys' norms
  // How the scores of a group's query heads are combined: sum (HATA's, of their differing bits),
  // softmax (of each head's estimated products, then summed, so that rows that one head needs are
  // not outvoted by the others, lab/notes/accuracy.md), auto: softmax if hata_norms is on.
  std::string hata_group = "auto";
  int loki_rank = 0;  // leading principal components; 0: head_dim / 4

  // ---- beyond the papers ----
  bool delta_update = true;  // transfer only rows that are not cached yet
  // Slots per head as a multiple of its budget, >= 1: deselected rows stay until their slot is
  // needed.
  double slots = 1.0;
  // auto (int8 on a GPU with bf16 rows, otherwise full) | full (as on the device) | fp8 | int8,
  // with a scale per row | int4, with a minimum and a step per group of 64 values.
  std::string host_rows = "auto";
  // How rows are transferred to a GPU (policies.md): gpu-pull (kernels read them) | cpu-push (CPU
  // threads write the rows that the GPU requests) | copy (gathered and copied between kernels) |
  // auto: gpu-pull. On the CPU only auto.
  std::string transfer = "auto";
  // Threads that gather rows for cpu-push and copy; 0: all cores but one, at most 16.
  int transfer_threads = 0;

  // ---- other policies ---- For policies that transfer whole layers, on a GPU: a step's sequences
  // pass through each layer in this many groups, whose rows are transferred one after another
  // (FlexGen's num_gpu_batches); 1: all together.
  int64_t batch_groups = 1;
  KvprOptions kvpr;
  PolicySettings settings;

  // Compare the attended rows with the exact top-k at each step (slow).
  bool measure_recall = false;

  // A profile file; "auto": litecache-profile.safetensors in the model's directory if it exists;
  // "none".
  std::string profile = "auto";

  // Hard limits in bytes; 0: from the engine's memory budget. Device: weights, buffers, resident
  // rows, cached rows, retriever metadata. Host: the host store.
  uint64_t device_memory = 0;
  uint64_t host_memory = 0;

  // Throws InvalidArgument naming the option, its value and the valid values.
  void Validate(OptionNames names = OptionNames::kMembers) const;
};

}  // namespace litecache

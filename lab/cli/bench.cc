// litecache-lab bench: the product's bench plus forced reuse, which random weights do not have.
#include "cli/commands/bench.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lab/blocks/block_patterns.h"
#include "lab/blocks/block_replay.h"
#include "lab/cli/commands.h"
#include "lab/forced/reuse_override.h"
#include "lab/trace/replay.h"
#include "lab/trace/replays_trace.h"
#include "lab/trace/trace.h"

namespace litecache::lab {
namespace {

using cli::UsageError;

class LabBenchCommand final : public cli::BenchCommand {
 public:
  std::string Notes() const override {
    return BenchCommand::Notes() +
           "\nlitecache-lab's bench replaces what lookups and selections find, after they have "
           "done "
           "their work: with shares (--hit-ratio, --overlap) or with a recorded model's (--trace). "
           "--prompt-blocks does so for the rows that sparse prompts choose.";
  }
  std::vector<std::string> Examples() const override {
    return {
        "litecache-lab bench --shape llama3-8b --policies full,litecache --context 128000 "
        "--only decode \\",
        "    --hit-ratio 0.8 --overlap 0.7"};
  }
  std::vector<std::string> CommonOptions() const override {
    auto flags = BenchCommand::CommonOptions();
    flags.insert(flags.end(), {"--hit-ratio", "--overlap", "--trace", "--prompt-blocks"});
    return flags;
  }

  void Declare(CLI::App& app) override {
    BenchCommand::Declare(app);
    app.add_option("--hit-ratio", hit_ratio_,
                   "Share of policy litecache's lookups that hit, whatever the queries are (which "
                   "ones: by --seed)")
        ->type_name("X")
        ->check(CLI::Range(0.0, 1.0).description(""));
    app.add_option("--overlap", overlap_,
                   "Share of a refreshed head's rows that are on the device already, whatever was "
                   "selected")
        ->type_name("X")
        ->check(CLI::Range(0.0, 1.0).description(""));
    app.add_option("--trace", trace_file_,
                   "Play what a real model's steps looked for (`litecache-lab record`), at this "
                   "shape: policies that look rows up or select them")
        ->type_name("FILE");
    app.add_option("--prompt-blocks", blocks_file_,
                   "Attend the blocks of rows that a real model's prompt kept (`litecache-lab "
                   "record-blocks`), extended to --context: with --prefill sparse")
        ->type_name("FILE");
  }

  int Run(const std::vector<std::string>& words) override {
    if (!trace_file_.empty()) {
      if (hit_ratio_ || overlap_) {
        throw UsageError("--trace cannot be combined with --hit-ratio and --overlap");
      }
      trace_ = std::make_shared<const lab::Trace>(lab::Trace::Load(trace_file_));
    }
    if (!blocks_file_.empty()) {
      blocks_ = std::make_shared<const BlockPatterns>(BlockPatterns::Load(blocks_file_));
    }
    return BenchCommand::Run(words);
  }

 protected:
  // Provides thresholds and resident heads if the model has no profile.
  std::shared_ptr<const kv::Profile> ProfileFor(const KvOptions& options,
                                                const bench::Subject& subject) const override {
    auto profile = BenchCommand::ProfileFor(options, subject);
    if (trace_ == nullptr || profile != nullptr || options.policy != "litecache") return profile;
    return std::make_shared<const kv::Profile>(lab::ProfileOf(*trace_, subject.layout()));
  }

  void PreparePlans(std::span<Plan> plans) override {
    if (hit_ratio_ || overlap_) ForceShares(plans);
    if (blocks_ != nullptr) PutBlocks(plans);
    if (trace_ == nullptr) return;
    bool replayed = false;
    for (const Plan& plan : plans) {
      for (kv::CachePlan* cache : {plan.cache.get(), plan.on_device.get()}) {
        replayed |= cache != nullptr && lab::ReplayTrace(cache, trace_);
      }
    }
    if (!replayed) {
      throw UsageError(
          "--trace: none of the policies looks rows up or selects them; add litecache "
          "to --policies");
    }
  }

  std::string Remark() const override {
    std::string text;
    if (hit_ratio_) text += fmt::format("hit ratio {:.3g}", *hit_ratio_);
    if (overlap_) text += fmt::format("{}overlap {:.3g}", text.empty() ? "" : ", ", *overlap_);
    if (trace_ != nullptr) text += fmt::format("trace {} ({})", trace_file_, trace_->Describe());
    if (!text.empty()) text = "forced on lookups, not a property of these queries: " + text;
    if (blocks_ == nullptr) return text;
    text += fmt::format("{}blocks of sparse prompts replayed from {} ({}); kept here:",
                        text.empty() ? "" : "; ", blocks_file_, blocks_->Describe());
    for (const auto& [context, share] : kept_) {
      text += fmt::format("{} {:.1f}% of {} tokens", context == kept_.begin()->first ? "" : ",",
                          100 * share, context);
    }
    return text;
  }

  // Null if nothing is forced.
  void AddToJson(nlohmann::ordered_json* json) const override {
    nlohmann::ordered_json forced;
    if (hit_ratio_) forced["hit_ratio"] = *hit_ratio_;
    if (overlap_) forced["overlap"] = *overlap_;
    if (trace_ != nullptr) forced["trace"] = trace_->Describe();
    if (blocks_ != nullptr) {
      forced["blocks"] = blocks_->Describe();
      for (const auto& [context, share] : kept_) {
        forced["blocks_kept"][std::to_string(context)] = share;
      }
    }
    (*json)["forced"] = std::move(forced);
  }

 private:
  void ForceShares(std::span<Plan> plans) const {
    bool forced = false;
    for (Plan& plan : plans) {
      const kv::HeadPlan* heads = plan.cache->heads();
      if (heads == nullptr) continue;  // the policy does no lookups
      const lab::ReuseShares shares{.hit_ratio = hit_ratio_, .overlap = overlap_, .seed = seed()};
      lab::ForceReuse(plan.cache.get(), lab::DrawReuse(*heads, shares));
      plan.on_device.reset();  // nothing is reused there
      forced = true;
    }
    if (!forced) {
      throw UsageError(
          "--hit-ratio and --overlap are of policy litecache: add it to --policies, or pass "
          "--kv-policy litecache");
    }
  }

  void PutBlocks(std::span<const Plan> plans) {
    bool replayed = false;
    for (const Plan& plan : plans) {
      for (kv::CachePlan* cache : {plan.cache.get(), plan.on_device.get()}) {
        replayed |= cache != nullptr && ReplayBlocks(cache, blocks_);
      }
    }
    if (!replayed) {
      throw UsageError(
          "--prompt-blocks: no prompt is sparse; add --prefill sparse, and full or litecache to "
          "--policies");
    }
    const Layout& layout = plans.front().cache->layout();
    for (const int64_t context : contexts()) {
      kept_[context] = blocks_->KeptShare(context, layout.layers, layout.q_heads);
    }
  }

  std::optional<double> hit_ratio_, overlap_;
  std::string trace_file_;
  std::shared_ptr<const lab::Trace> trace_;  // null: none
  std::string blocks_file_;
  std::shared_ptr<const BlockPatterns> blocks_;  // null: none
  std::map<int64_t, double> kept_;               // by context: the share of the blocks
};

}  // namespace

std::unique_ptr<cli::Command> MakeBenchCommand() { return std::make_unique<LabBenchCommand>(); }

}  // namespace litecache::lab

// litecache bench: the speed of prefill and decode, and how close it is to the machine's limits.
// litecache-lab's bench derives from it.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench/runner.h"
#include "bench/subject.h"
#include "cli/bench_report.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"
#include "kv/cache_plan.h"
#include "kv/heads/profile.h"
#include "parallel/process_group.h"

namespace litecache::cli {

class BenchCommand : public Command {
 public:
  std::string Name() const override { return "bench"; }
  std::string Summary() const override {
    return "Speed of prefill and decode over a grid of batches and contexts.";
  }
  std::string Notes() const override;
  std::vector<std::string> Examples() const override;
  std::vector<std::string> CommonOptions() const override;
  void Declare(CLI::App& app) override;
  int Run(const std::vector<std::string>& words) override;

 protected:
  struct Plan {
    std::string name;  // of the policy or of a --config
    KvOptions options;
    std::unique_ptr<kv::CachePlan> cache;
    std::unique_ptr<kv::CachePlan> on_device;  // with resident_heads = auto; else null

    // For a cell: with its rows on the device if that is possible.
    kv::CachePlan& For(const bench::Subject& subject, int64_t batch, int64_t context) const;
  };

  // Hooks for derived commands; each is called once per plan or once per run.
  // The profile for a plan; null if there is none.
  virtual std::shared_ptr<const kv::Profile> ProfileFor(const KvOptions& options,
                                                        const bench::Subject& subject) const;
  // Called when all plans are made, before the weights.
  virtual void PreparePlans(std::span<Plan> plans) {}
  // A line below the head of the report; empty: none.
  virtual std::string Remark() const { return ""; }
  virtual void AddToJson(nlohmann::ordered_json* json) const {}

  uint64_t seed() const { return options_.seed; }
  std::span<const int64_t> contexts() const { return contexts_; }

 private:
  std::shared_ptr<parallel::ProcessGroup> StartRanks();
  bench::SubjectOptions Wanted() const;
  void MakePlans(const bench::Subject& subject, DeviceType device);
  void ReadText(const bench::Subject& subject);
  int64_t MoreTokens() const;
  void CheckFits(const bench::Subject& subject, const Plan& plan) const;
  void Prefill(bench::Runner& runner, const BenchReport& report, Output& output,
               nlohmann::ordered_json* json);
  void Decode(bench::Runner& runner, const BenchReport& report, Output& output,
              nlohmann::ordered_json* json);

  EngineFlags flags_;
  bench::RunOptions options_;
  int64_t layers_ = 0;
  std::string batch_list_ = "1";
  std::string context_list_ = "512";
  std::string only_;
  std::string policies_;
  std::vector<std::string> named_;
  std::string text_;
  std::string fill_ = "synthetic";
  bool json_ = false;
  std::string graphs_ = "on";

  std::vector<int64_t> batches_, contexts_;
  std::vector<Plan> plans_;
};

}  // namespace litecache::cli

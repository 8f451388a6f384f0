#include "lab/cli/bench_suite.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/version.h"
#include "io/hub.h"
#include "lab/papers/suite.h"
#include "model/config.h"

namespace litecache::cli {
namespace {

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> words;
  for (auto& word : CLI::detail::split(list, ',')) {
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

}  // namespace

void BenchSuiteFlags::Declare(CLI::App& app) {
  app.add_option("--suite", suite,
                 "papers: the figures and tables of the LiteCache paper on this engine, of which "
                 "lab/tools/papers_page.py makes a page; --shape or --model, --context and --batch "
                 "replace its own")
      ->type_name("NAME")
      ->check(CLI::IsMember({"papers"}).description(""));
  app.add_flag("--quick", quick, "With --suite: few points of one shape");
  app.add_option("-o,--output", output,
                 "With --suite: directory of what is measured; what is there is not measured again")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--experiments", experiments,
                 "With --suite: only these, comma-separated: latency, breakdown, throughput, "
                 "prefill, cache, ablation, link, accuracy")
      ->type_name("LIST");
  AddRepeated(app, "--system", systems,
              "With --suite: measure only this system, named as in the page's tables; can be "
              "given several times")
      ->type_name("NAME");
  app.add_option("--accuracy-model", accuracy_model,
                 "With --suite: checkpoint that accuracy is measured on")
      ->type_name("MODEL");
  app.add_option("--accuracy-count", accuracy_count,
                 "With --suite: samples a task that accuracy is measured on; default: the suite's")
      ->type_name("N")
      ->check(CLI::Range(1, 100000).description(""));
  app.add_option("--accuracy-context", accuracy_contexts,
                 "With --suite: tokens of the samples that accuracy is measured on, "
                 "comma-separated; default: the suite's")
      ->type_name("LIST");
  app.add_option(
         "--time-limit", time_limit,
         "With --suite: seconds after which no further measurement begins; 0: only write what "
         "the page needs to know of the suite")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e9).description(""));
}

int BenchSuiteFlags::Run(const EngineFlags& flags, const BenchSuiteRequest& request) const {
  const InterruptScope interrupt;
  // Found now rather than after minutes of measuring.
  if (!request.shape.empty()) model::ModelConfig::FromShapeName(request.shape);
  for (const std::string& model : {flags.model, accuracy_model}) {
    if (!model.empty()) io::ResolveModelDirectory(model);
  }
  bench::papers::SuiteOptions options;
  options.grid = bench::papers::PapersGrid(quick);
  bench::papers::Grid& grid = options.grid;
  if (!request.shape.empty()) grid.shapes = {request.shape};
  if (!flags.model.empty()) grid.shapes = {flags.model};
  if (!request.batches.empty()) {
    grid.batches = grid.ablation_batches = request.batches;
    grid.batches_of.clear();
    grid.forms_batch = *std::max_element(request.batches.begin(), request.batches.end());
  }
  if (!request.contexts.empty()) {
    grid.lengths = grid.prefill_lengths = grid.link_lengths = request.contexts;
    grid.batch_context = request.contexts.front();
    grid.accuracy_lengths = {request.contexts.back()};
  }
  grid.accuracy_model = accuracy_model;
  if (accuracy_count > 0) grid.accuracy_count = accuracy_count;
  if (!request.accuracy_contexts.empty()) grid.accuracy_lengths = request.accuracy_contexts;
  bench::papers::LabOptions& lab = options.lab;
  lab.device = flags.device;
  lab.threads = flags.threads;
  lab.memory = flags.memory.value;
  lab.caps = {flags.kv.device_memory.value, flags.kv.host_memory.value};
  lab.prefill_chunk = flags.prefill_chunk;
  lab.max_batch = flags.max_batch;
  lab.seed = request.seed;
  if (request.steps > 0) lab.decode_steps = request.steps;
  if (request.repeats > 0) lab.prefill_repeats = request.repeats;
  lab.hit_ratio = request.hit_ratio.value_or(lab.hit_ratio);
  lab.overlap = request.overlap.value_or(lab.overlap);
  lab.trace = request.trace;
  lab.accuracy_tasks = grid.accuracy_tasks;
  for (const auto* lengths : {&grid.lengths, &grid.prefill_lengths, &grid.link_lengths}) {
    for (const int64_t length : *lengths) lab.longest = std::max(lab.longest, length);
  }
  lab.longest = std::max(lab.longest, grid.batch_context);
  options.output = output;
  options.seconds = time_limit;
  options.experiments = Split(experiments);
  options.systems = systems;
  options.version = VersionText().substr(0, VersionText().find('\n'));
  options.command = fmt::format(
      "litecache bench --suite {}{} --device {}{}{}{}{}{}", suite, quick ? " --quick" : "",
      flags.device, request.shape.empty() ? "" : " --shape " + request.shape,
      flags.model.empty() ? "" : " --model " + flags.model,
      request.trace_file.empty() ? "" : " --trace " + request.trace_file,
      request.steps > 0 ? fmt::format(" --steps {}", request.steps) : "",
      accuracy_model.empty() ? "" : " --accuracy-model " + accuracy_model);
  if (accuracy_count > 0) options.command += fmt::format(" --accuracy-count {}", accuracy_count);
  if (!accuracy_contexts.empty()) options.command += " --accuracy-context " + accuracy_contexts;
  options.interrupted = [&] { return interrupt.Interrupted(); };
  options.note = [](const std::string& line) {
    // Over the progress bar, which is drawn again below.
    std::fputs(((isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "") + line + "\n").c_str(), stderr);
    std::fflush(stderr);
  };
  const auto result = bench::papers::RunSuite(options);
  Output text;
  text.Write(fmt::format("{} measurements: {} new, {} kept, {} skipped, {} left\nwritten: {}\n",
                         result.cells, result.measured, result.kept, result.skipped, result.left,
                         result.folder.string()));
  text.Close();
  return interrupt.Interrupted() ? kInterrupted : kOk;
}

}  // namespace litecache::cli

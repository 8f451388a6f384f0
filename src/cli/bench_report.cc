#include "cli/bench_report.h"

#include <fmt/core.h>

#include "base/units.h"
#include "bench/measurement_json.h"
#include "device/sections.h"

namespace litecache::cli {
namespace {

double Ratio(const bench::Measurement& m) { return m.seconds / m.floor_seconds; }

std::string WeightsText(const model::Decoder& decoder) {
  std::string text = FormatBytes(decoder.weight_bytes());
  if (decoder.host_weight_bytes() > 0) {
    text += fmt::format(
        " on the device, {} of {} in host memory", FormatBytes(decoder.host_weight_bytes()),
        decoder.offloaded_layers() > 0 ? fmt::format("{} layers", decoder.offloaded_layers())
                                       : "experts");
  }
  return text;
}

}  // namespace

nlohmann::ordered_json BenchReport::HeaderJson() const {
  const auto& config = subject.decoder().config();
  const DType dtype = subject.decoder().kv_dtype();  // also the type of the arithmetic
  return {{"model",
           {{"name", subject.name()},
            {"family", model::Name(config.family)},
            {"parameters", config.parameters()},
            {"weight_bytes", subject.decoder().weight_bytes()},
            {"host_weight_bytes", subject.decoder().host_weight_bytes()},
            {"ranks", config.shard.ranks},
            {"kv_heads", config.layers * config.kv_heads},
            {"kv_bytes_per_token", config.kv_layout(dtype).token_bytes()}}},
          {"machine",
           {{"device", device.Info().name},
            {"threads", device.Info().parallelism},
            {"gb_per_s", rates.bytes_per_second / 1e9},
            {"gflop_per_s", rates.flops_per_second / 1e9},
            {"link_gb_per_s", rates.link_bytes_per_second / 1e9},
            {"arithmetic", litecache::Name(dtype)}}},
          {"fill", fill}};
}

std::string BenchReport::HeaderText() const {
  return fmt::format(
      "{} on {}{}\nmemory {:.1f} GB/s, {}{} arithmetic {:.0f} GFLOP/s (measured); "
      "weights {}\n{}",
      subject.name(), device.Info().name,
      subject.config().shard.ranks > 1
          ? fmt::format(", one of {} ranks, whose figures these are", subject.config().shard.ranks)
          : "",
      rates.bytes_per_second / 1e9,
      rates.link_bytes_per_second > 0
          ? fmt::format("link {:.1f} GB/s, ", rates.link_bytes_per_second / 1e9)
          : "",
      litecache::Name(subject.decoder().kv_dtype()), rates.flops_per_second / 1e9,
      WeightsText(subject.decoder()), remark.empty() ? "" : remark + "\n");
}

std::string BenchReport::PrefillHead() const {
  return fmt::format("\n{:<10}{:>9}{:>12}{:>12}{:>12}{:>12}{:>9}\n", "prefill", "context", "tok/s",
                     "time", "GFLOP/s", "floor", "x floor");
}

std::string BenchReport::PrefillRow(const std::string& policy, const bench::Measurement& m) const {
  return fmt::format("{:<10}{:>9}{:>12.1f}{:>12}{:>12.0f}{:>12}{:>9.2f}\n", policy, m.context,
                     static_cast<double>(m.context) / m.seconds, FormatSeconds(m.seconds),
                     m.cost.flops / m.seconds / 1e9, FormatSeconds(m.floor_seconds), Ratio(m));
}

std::string BenchReport::DecodeHead() const {
  return fmt::format(
      "\n{:<10}{:>9}{:>7}{:>7}{:>12}{:>10}{:>11}{:>12}{:>9}{:>11}{:>7}{:>11}{:>9}{:>7}{:>11}"
      "{:>11}{:>10}{:>11}   ({} KV rows)\n",
      "decode", "context", "batch", "graph", "step", "slowest", "tok/s", "bytes/step", "GB/s",
      "link/step", "GB/s", "floor", "x floor", "hits", "corrected", "rows/step", "CPU/step",
      "GPU mem", fill);
}

std::string BenchReport::DecodeRow(const std::string& policy, bool graphs,
                                   const bench::Measurement& m) const {
  const std::string hits =
      m.kv.lookups > 0 ? fmt::format("{:.0f}%", 100 * bench::HitRatio(m.kv)) : "-";
  const std::string corrected =
      m.kv.verified > 0 ? fmt::format("{:.1f}%", 100 * bench::CorrectedRatio(m.kv)) : "-";
  const bool link = m.cost.link_bytes > 0 && gpu;
  std::string text = fmt::format(
      "{:<10}{:>9}{:>7}{:>7}{:>12}{:>10}{:>11.1f}{:>12}{:>9.1f}{:>11}{:>7}{:>11}{:>9.2f}{:>7}"
      "{:>11}{:>11.0f}{:>10}{:>11}\n",
      policy, m.context, m.batch,
      !gpu     ? "-"
      : graphs ? "on"
               : "off",
      FormatSeconds(m.seconds), FormatSeconds(m.slowest), static_cast<double>(m.batch) / m.seconds,
      FormatBytes(static_cast<uint64_t>(m.cost.bytes)), m.cost.bytes / m.seconds / 1e9,
      link ? FormatBytes(static_cast<uint64_t>(m.cost.link_bytes)) : "-",
      link ? fmt::format("{:.1f}", m.cost.link_bytes / m.seconds / 1e9) : "-",
      FormatSeconds(m.floor_seconds), Ratio(m), hits, corrected, bench::RowsMoved(m, decode_steps),
      FormatSeconds(m.cpu_seconds), m.device_memory > 0 ? FormatBytes(m.device_memory) : "-");
  if (m.breakdown.marks > 0) text += BreakdownText(m);
  return text;
}

// One line with the times of the step and of a layer (whose products and rest include the logits').
std::string BenchReport::BreakdownText(const bench::Measurement& m) const {
  std::string text = "  a layer:";
  const auto layers = static_cast<double>(subject.decoder().config().layers);
  const auto add = [&](std::string_view part, double seconds) {
    if (seconds == 0) return;
    text += fmt::format(" {} {} ({:.0f}%),", part, FormatSeconds(seconds / layers),
                        100 * seconds / m.seconds);
  };
  for (size_t i = kSections; i-- > 0;) {
    add(litecache::Name(static_cast<litecache::Section>(i)), m.breakdown.seconds[i]);
  }
  add("launch", m.breakdown.launch);
  return text + fmt::format(" by {} marks a step of {}, taken off\n", m.breakdown.marks,
                            FormatSeconds(m.breakdown.mark_seconds));
}

}  // namespace litecache::cli

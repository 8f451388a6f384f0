#include "server/metrics/metrics.h"

#include <algorithm>
#include <vector>

namespace litecache::server {
namespace {

class Page {
 public:
  template <typename Value>
  void Gauge(std::string_view name, std::string_view help, Value value) {
    text_.Family(name, "gauge", help);
    text_.Sample(name, static_cast<double>(value));
  }
  template <typename Value>
  void Counter(std::string_view name, std::string_view help, Value value) {
    text_.Family(name, "counter", help);
    text_.Sample(name, static_cast<double>(value));
  }
  void Tiers(std::string_view name, std::string_view help, const kv::TierBytes& bytes) {
    text_.Family(name, "gauge", help);
    text_.Sample(name, {{"tier", "device"}}, static_cast<double>(bytes.device));
    text_.Sample(name, {{"tier", "host"}}, static_cast<double>(bytes.host));
  }
  Exposition& text() { return text_; }

 private:
  Exposition text_;
};

void AddKv(const kv::Stats& kv, Page* page) {
  page->Tiers("litecache_kv_used_bytes", "KV cache in use.", kv.used);
  page->Tiers("litecache_kv_peak_bytes", "The most KV cache in use at once.", kv.peak);
  page->Tiers("litecache_kv_provided_bytes", "Memory taken for the KV cache, in use or free.",
              kv.provided);
  page->Tiers("litecache_kv_capacity_bytes", "Budget of the KV cache.", kv.capacity);
  page->Counter("litecache_kv_lookups_total", "Decode steps of a KV head that had to choose rows.",
                kv.lookups);
  page->Counter("litecache_kv_hits_total", "Of these, that reused the rows of the step before.",
                kv.hits);
  page->Gauge(
      "litecache_kv_hit_ratio", "Hits by lookups since start; 0 without lookups.",
      kv.lookups == 0 ? 0.0 : static_cast<double>(kv.hits) / static_cast<double>(kv.lookups));
  page->Counter("litecache_kv_verified_total",
                "Lookups with a predicted query that were checked with the actual one.",
                kv.verified);
  page->Counter("litecache_kv_corrected_total",
                "Of these, that missed, so that the head chose its rows anew.", kv.corrected);
  page->Counter("litecache_kv_read_bytes_total", "KV bytes that attention has read.",
                kv.bytes_read);
  page->Counter("litecache_kv_recomputed_rows_total", "KV rows recomputed from activations.",
                kv.rows_recomputed);
  const std::pair<const char*, const kv::Traffic*> traffic[] = {
      {"miss", &kv.miss},   {"prefetch", &kv.prefetch},      {"fill", &kv.fill},
      {"spill", &kv.spill}, {"prefill", &kv.prefill},        {"stream", &kv.stream},
      {"admit", &kv.admit}, {"activations", &kv.activations}};
  Exposition& text = page->text();
  text.Family("litecache_link_bytes_total", "counter", "Bytes between the tiers, by reason.");
  for (const auto& [kind, moved] : traffic) {
    text.Sample("litecache_link_bytes_total", {{"kind", kind}}, static_cast<double>(moved->bytes));
  }
  text.Family("litecache_link_rows_total", "counter", "KV rows between the tiers, by reason.");
  for (const auto& [kind, moved] : traffic) {
    text.Sample("litecache_link_rows_total", {{"kind", kind}}, static_cast<double>(moved->rows));
  }
}

// With several ranks or replicas: what each of them has.
void AddParts(const std::vector<PartStats>& parts, Exposition* text) {
  if (parts.empty()) return;
  const auto add = [&](const char* name, const char* type, const char* help, auto value) {
    text->Family(name, type, help);
    for (const PartStats& part : parts) {
      text->Sample(name, {{"part", part.name}}, static_cast<double>(value(part)));
    }
  };
  const auto tiers = [&](const char* name, const char* help, kv::TierBytes kv::Stats::*bytes) {
    text->Family(name, "gauge", help);
    for (const PartStats& part : parts) {
      const kv::TierBytes& tier = part.kv.*bytes;
      text->Sample(name, {{"part", part.name}, {"tier", "device"}},
                   static_cast<double>(tier.device));
      text->Sample(name, {{"part", part.name}, {"tier", "host"}}, static_cast<double>(tier.host));
    }
  };
  add("litecache_part_sequences_running", "gauge", "Samples of a replica; 0 for ranks.",
      [](const PartStats& part) { return part.running; });
  add("litecache_part_requests_waiting", "gauge", "Requests in a replica's queue; 0 for ranks.",
      [](const PartStats& part) { return part.waiting; });
  tiers("litecache_part_kv_used_bytes", "KV cache of a rank or replica in use.", &kv::Stats::used);
  tiers("litecache_part_kv_capacity_bytes", "Its budget.", &kv::Stats::capacity);
  add("litecache_part_kv_lookups_total", "counter",
      "Its decode steps of a KV head that chose rows.",
      [](const PartStats& part) { return part.kv.lookups; });
  add("litecache_part_kv_hits_total", "counter", "Of these, that reused rows.",
      [](const PartStats& part) { return part.kv.hits; });
  add("litecache_part_link_bytes_total", "counter", "Bytes between its tiers.",
      [](const PartStats& part) { return part.kv.moved().bytes; });
}

void AddPrefixes(const PrefixStats& prefix, Page* page) {
  page->Counter("litecache_prefix_requests_total", "Requests that looked for a known prefix.",
                prefix.requests);
  page->Counter("litecache_prefix_hits_total", "Of these, that found one.", prefix.hits);
  page->Counter("litecache_prefix_tokens_total", "Prompt tokens that were not computed again.",
                prefix.tokens);
  page->Counter("litecache_prefix_loaded_tokens_total", "Of these, read from the prefix store.",
                prefix.tokens_loaded);
  page->Gauge("litecache_prefix_sequences", "Prefixes kept in memory.", prefix.sequences);
  page->Tiers("litecache_prefix_bytes", "KV cache that kept prefixes hold; evicted when needed.",
              prefix.bytes);
  page->Counter("litecache_prefix_evictions_total", "Prefixes evicted for their memory.",
                prefix.evictions);
  if (!prefix.store) return;
  page->Gauge("litecache_prefix_store_writing", "1; 0 after a write to the store has failed.",
              prefix.store_writing ? 1 : 0);
  page->Gauge("litecache_prefix_store_blocks", "Blocks in the prefix store.", prefix.store_blocks);
  page->Gauge("litecache_prefix_store_bytes", "Size of the prefix store.", prefix.store_bytes);
  page->Gauge("litecache_prefix_store_capacity_bytes", "Size limit of the prefix store.",
              prefix.store_capacity);
  page->Counter("litecache_prefix_store_read_bytes_total", "Bytes read from the prefix store.",
                prefix.store_bytes_read);
  page->Counter("litecache_prefix_store_written_bytes_total", "Bytes written to it.",
                prefix.store_bytes_written);
  page->Counter("litecache_prefix_store_evictions_total", "Blocks removed from it for its size.",
                prefix.store_evictions);
  page->Counter("litecache_prefix_store_damaged_total", "Blocks removed because they were damaged.",
                prefix.store_damaged);
}

}  // namespace

std::string MetricsText(const Metrics& metrics, const HttpCounters& http, const EngineStats& engine,
                        int64_t requests) {
  Page page;
  const int64_t waiting = std::min(engine.waiting, requests);
  page.Gauge("litecache_requests_running", "Requests being prepared or generated.",
             requests - waiting);
  page.Gauge("litecache_requests_waiting", "Requests in the engine's queue.", waiting);
  page.Gauge("litecache_sequences_running", "Samples that are prefilled or decoded.",
             engine.running);
  page.Counter("litecache_prompt_tokens_total", "Prompt tokens processed.", engine.prompt_tokens);
  page.Counter("litecache_generation_tokens_total", "Tokens generated.", engine.generated_tokens);
  page.Counter("litecache_drafted_tokens_total", "Tokens computed before they were chosen.",
               engine.drafts.drafted);
  page.Counter("litecache_draft_accepted_tokens_total", "Drafted tokens that were chosen.",
               engine.drafts.accepted);
  page.Counter("litecache_draft_steps_total",
               "Steps of sequences that only drafted (draft = sparse, or a draft model's).",
               engine.drafts.draft_steps);
  page.Counter("litecache_engine_steps_total", "Forward passes.", engine.steps);
  page.Counter("litecache_requests_rejected_total",
               "Requests refused with 429: the queue was full.", metrics.rejected);
  Exposition& text = page.text();
  text.Family("litecache_http_responses_total", "counter", "Answers by route and status.");
  for (const auto& [key, count] : metrics.answers) {
    text.Sample("litecache_http_responses_total",
                {{"route", key.first}, {"status", std::to_string(key.second)}},
                static_cast<double>(count));
  }
  text.Family("litecache_samples_finished_total", "counter", "Finished samples by reason.");
  for (const auto& [reason, count] : metrics.finished) {
    text.Sample("litecache_samples_finished_total", {{"reason", reason}},
                static_cast<double>(count));
  }
  text.Add("litecache_time_to_first_token_seconds", metrics.first_token,
           "From a request's arrival to its first token.");
  text.Add("litecache_time_per_output_token_seconds", metrics.token_gap,
           "Between two tokens of a sample.");
  text.Add("litecache_request_duration_seconds", metrics.duration,
           "From a request's arrival to the end of its answer.");
  text.Add("litecache_request_queue_seconds", metrics.queue, "In the engine's queue.");
  text.Add("litecache_request_prompt_tokens", metrics.prompt_tokens, "Prompt lengths.");
  AddKv(engine.kv, &page);
  AddPrefixes(engine.prefix, &page);
  AddParts(engine.parts, &text);
  page.Gauge("litecache_http_connections", "Open connections.", http.connections.load());
  page.Gauge("litecache_http_requests_open", "Requests of any kind that are not answered yet.",
             http.exchanges.load());
  page.Counter("litecache_http_connections_total", "Connections accepted.", http.accepted.load());
  page.Counter("litecache_http_connections_refused_total", "Connections beyond the limit.",
               http.refused.load());
  page.Counter("litecache_http_requests_abandoned_total",
               "Requests whose client left before the end of the answer.", http.abandoned.load());
  page.Counter("litecache_http_bad_requests_total",
               "Requests that were not valid HTTP or too large.", http.bad_requests.load());
  page.Counter("litecache_http_timeouts_total", "Connections closed for being idle or slow.",
               http.timeouts.load());
  return text.text();
}

}  // namespace litecache::server

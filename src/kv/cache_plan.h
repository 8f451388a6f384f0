// The plan of a KV cache: its costs, for the memory planner, and the function that creates it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kv/cache.h"
#include "litecache/kv_options.h"
#include "litecache/named_bytes.h"
#include "ops/sparse_prefill/sparse_prompts.h"

namespace litecache::kv {

struct HeadPlan;  // kv/heads/head_plan.h
struct Profile;   // kv/heads/profile.h

class CachePlan {
 public:
  virtual ~CachePlan() = default;
  virtual const Layout& layout() const = 0;
  // As Cache::BytesFor.
  virtual TierBytes BytesFor(int64_t tokens) const = 0;
  virtual TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const = 0;
  // Bytes of scratch on the host's `threads` threads, outside the tiers: scores of selections and
  // partial results of attention, for up to `sequences` decode sequences of up to `tokens` tokens.
  virtual uint64_t ScratchBytes(int64_t sequences, int64_t tokens, int threads) const = 0;
  // The heads' roles; null for policies without them.
  virtual const HeadPlan* heads() const { return nullptr; }
  // Name of the retriever, with "auto" resolved; empty for policies without one.
  virtual std::string retriever() const { return ""; }
  virtual bool prefetches() const { return false; }
  // Name of the transfer engine, with "auto" resolved; empty if no rows are transferred to a GPU.
  virtual std::string transfer() const { return ""; }
  // Everything besides the model that determines the bytes of Cache::ExportBlock: layout, row
  // formats, heads' roles, the retriever with its weights, and settings that affect generated
  // tokens' rows. Caches with equal texts can exchange blocks; those with an empty text cannot.
  virtual std::string Identity() const { return ""; }
  // Turns the resident head that is easiest to reuse into an offloaded one; the memory planner
  // calls it if device memory is too small (CLO section 4). False if there is none.
  virtual bool DropResidentHead() { return false; }
  // Counts what it takes to take back tokens (Cache::Truncate) where that is more than their rows,
  // for steps that draft up to `tokens` tokens of a sequence. Without it, caches of the plan that
  // need such memory cannot take back any.
  virtual void PlanDrafts(int64_t tokens) {}
  // Describes the device's part of the KV memory.
  virtual std::string DeviceHolds() const { return ""; }
  // The device's part of BytesFor(tokens), by purpose; empty if DeviceHolds() describes it.
  virtual std::vector<NamedBytes> DeviceParts(int64_t tokens) const { return {}; }
  // Why the policy gains less here than expected, and what can be done; empty if it does not. For
  // policies with heads() engine::PlanWarning() checks it.
  virtual std::string Warning() const { return ""; }
  // The resolved settings, one fact a line; empty if the heads' roles describe them.
  virtual std::vector<std::string> Notes() const { return {}; }
  // The cache does not refer to the plan. Budgets are hard limits.
  virtual std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const = 0;
};

// Policy `full`.
std::unique_ptr<CachePlan> PlanFullCache(const Layout& layout, DeviceType device = DeviceType::kCpu,
                                         const ops::SparsePrefill& sparse = {});

// Policy `litecache`.
std::unique_ptr<CachePlan> PlanLiteCache(const Layout& layout, const KvOptions& options,
                                         std::shared_ptr<const Profile> profile,
                                         DeviceType device = DeviceType::kCpu);

// Policy `streaming`.
std::unique_ptr<CachePlan> PlanStreamingCache(const Layout& layout, const KvOptions& options,
                                              DeviceType device);

// Policy `kvpr`. It measures link and matrix product speed when a cache is created.
std::unique_ptr<CachePlan> PlanKvprCache(const Layout& layout, const KvOptions& options,
                                         DeviceType device);

// For a layout with sliding windows or states: layers that attend the whole context have the cache
// of options.policy, without a profile and predictions, the others their windows or states in
// device memory. Throws Unsupported for prefetch other than auto and off.
std::unique_ptr<CachePlan> PlanMixedCache(const Layout& layout, const KvOptions& options,
                                          DeviceType device);

// profile: null if there is none; not used for a layout that is not uniform. device: where the
// cache will be created. Throws InvalidArgument for bad options or a bad layout (CheckLayout), and
// as PlanMixedCache.
std::unique_ptr<CachePlan> MakeCachePlan(const Layout& layout, const KvOptions& options,
                                         std::shared_ptr<const Profile> profile,
                                         DeviceType device = DeviceType::kCpu);

}  // namespace litecache::kv

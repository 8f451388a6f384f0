// A KV cache before it exists: what it will cost, so that the memory planner can size it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kv/cache.h"
#include "litecache/kv_options.h"
#include "litecache/named_bytes.h"

namespace litecache::kv {

struct HeadPlan;  // kv/heads/head_plan.h
struct Profile;   // kv/heads/profile.h

class CachePlan {
 public:
  virtual ~CachePlan() = default;
  virtual const Layout& layout() const = 0;
  // See Cache.
  virtual TierBytes BytesFor(int64_t tokens) const = 0;
  virtual TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const = 0;
  // Memory that steps keep on the host's `threads` threads beside the tiers: scores of selections
  // and partial results of attention, with up to `sequences` that decode at up to `tokens` tokens.
  virtual uint64_t ScratchBytes(int64_t sequences, int64_t tokens, int threads) const = 0;
  // The heads' roles; null for policy full.
  virtual const HeadPlan* heads() const { return nullptr; }
  // Name of the retriever that "auto" came to; empty for policy full.
  virtual std::string retriever() const { return ""; }
  virtual bool prefetches() const { return false; }
  // Name of the transfer engine that "auto" came to; empty where rows do not travel to a GPU.
  virtual std::string transfer() const { return ""; }
  // All that the bytes of Cache::ExportBlock and their meaning depend on beside the model: layout,
  // row formats, heads' roles, retriever with its weights, and the settings that generated tokens'
  // rows depend on. Equal texts: blocks can be exchanged. Empty: they cannot.
  virtual std::string Identity() const { return ""; }
  // One resident head less, the one that is easiest to reuse: what the memory planner asks for
  // where the device's memory is too small (CLO section 4). False where there is none to drop.
  virtual bool DropResidentHead() { return false; }
  // What the device's part of the KV memory holds, in words.
  virtual std::string DeviceHolds() const { return ""; }
  // The device's part of BytesFor(tokens), by what it is for; empty where DeviceHolds() says it.
  virtual std::vector<NamedBytes> DeviceParts(int64_t tokens) const { return {}; }
  // Why the policy does less here than it is chosen for, and what can be done; empty where it does
  // it. Of policies with heads(), engine::PlanWarning() knows.
  virtual std::string Warning() const { return ""; }
  // What the policy's settings came to, one line a fact; empty where the heads' roles say it.
  virtual std::vector<std::string> Notes() const { return {}; }
  // The plan may go; the cache keeps what it needs. Budgets are hard.
  virtual std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const = 0;
};

// Policy `full`.
std::unique_ptr<CachePlan> PlanFullCache(const Layout& layout,
                                         DeviceType device = DeviceType::kCpu);

// Policy `litecache`.
// The layers that options.prefetch names; 0 for auto.
int64_t LayersAhead(const KvOptions& options);
std::unique_ptr<CachePlan> PlanLiteCache(const Layout& layout, const KvOptions& options,
                                         std::shared_ptr<const Profile> profile,
                                         DeviceType device = DeviceType::kCpu);

// Policy `streaming`.
std::unique_ptr<CachePlan> PlanStreamingCache(const Layout& layout, const KvOptions& options,
                                              DeviceType device);

// Policy `kvpr`. The link's and the products' speed are measured when a cache is created.
std::unique_ptr<CachePlan> PlanKvprCache(const Layout& layout, const KvOptions& options,
                                         DeviceType device);

// profile: null without one. device: what the cache will be created on. Throws InvalidArgument
// (options), CheckLayout's errors.
std::unique_ptr<CachePlan> MakeCachePlan(const Layout& layout, const KvOptions& options,
                                         std::shared_ptr<const Profile> profile,
                                         DeviceType device = DeviceType::kCpu);

}  // namespace litecache::kv

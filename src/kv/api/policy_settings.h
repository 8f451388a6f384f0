// The settings of a policy outside the product, as rows of the KV options.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/option_makers.h"
#include "litecache/kv_options.h"

namespace litecache::kv {

// Settings in struct P of KvOptions.settings, each named "policy.member" and "--policy-member".
template <class P>
std::vector<Option<KvOptions>> SettingsOf(const std::string& policy,
                                          std::span<const Option<P>> rows) {
  return option_rows::Part<KvOptions, P>(
      rows, policy, [](auto& options) -> auto& { return options.settings.template Of<P>(); });
}

}  // namespace litecache::kv

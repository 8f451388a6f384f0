// Requirements on the settings of every policy in lab/policies/.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "litecache/kv_options.h"
#include "option_table_checks.h"

namespace litecache::testing {

// P is in KvOptions.settings and has a row for each member, and these rows are in the table of the
// KV options.
template <class P>
void ExpectSettings(std::span<const Option<P>> rows, const std::string& policy) {
  ExpectSoundTable(rows);
  EXPECT_EQ(rows.size(), CountFields<P>());
  for (const Option<P>& row : rows) {
    const auto& option = FindOption(KvOptionTable(), policy + "." + row.name);
    EXPECT_EQ(option.policies, std::vector{policy});
    KvOptions options;
    option.set(options, AnotherValue(row), option.name);
    EXPECT_NE(row.get(options.settings.Of<P>()), row.get(P())) << option.name;
  }
}

// The policy reads these options of the product.
inline void ExpectReads(const std::string& policy, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    EXPECT_TRUE(FindOption(KvOptionTable(), name).AppliesTo(policy)) << name;
  }
  EXPECT_FALSE(FindOption(KvOptionTable(), "eta").AppliesTo(policy));
}

}  // namespace litecache::testing

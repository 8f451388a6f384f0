#include "base/markup.h"

#include <gtest/gtest.h>

namespace litecache {
namespace {

TEST(Markup, EscapesWhatWouldEndATextOrAnAttribute) {
  EXPECT_EQ(EscapeMarkup(R"(a < b && "c" > d's é)"),
            "a &lt; b &amp;&amp; &quot;c&quot; &gt; d's é");
  EXPECT_EQ(EscapeMarkup(""), "");
  EXPECT_EQ(EscapeMarkup("</script>"), "&lt;/script&gt;");
}

}  // namespace
}  // namespace litecache

#include "model/row_order.h"

#include <algorithm>

#include "base/error.h"

namespace litecache::model {

RowOrder::RowOrder(int64_t group, std::initializer_list<Section> sections)
    : group_(group), used_(sections.size()) {
  LC_CHECK(used_ >= 1 && used_ <= sections_.size() && sections.begin()->first == 0);
  std::ranges::copy(sections, sections_.begin());
}

RowOrder RowOrder::Paired(int64_t rows, int64_t heads) {
  LC_CHECK(rows % (2 * heads) == 0);
  RowOrder order;
  order.paired_dim_ = rows / heads;
  return order;
}

int64_t RowOrder::operator()(int64_t row) const {
  if (paired_dim_ != 0) {
    const int64_t at = row % paired_dim_, half = paired_dim_ / 2;
    return row - at + at % half * 2 + at / half;
  }
  if (group_ == 0) return row;
  size_t s = used_ - 1;
  while (sections_[s].first > row) --s;
  const int64_t at = row - sections_[s].first, count = sections_[s].count;
  return at / count * group_ + sections_[s].skipped + at % count;
}

}  // namespace litecache::model

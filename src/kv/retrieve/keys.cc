// Retrievers `keys` and `keys2`: scores with the keys themselves, rotated and kept in 4 or 2 bits a
// channel.
#include <algorithm>

#include "kv/retrieve/retrievers.h"
#include "ops/select/keys_select.h"

namespace litecache::kv {
namespace {

HeadMatrices MakeRotation(const ops::KeysFormat& format) {
  const std::vector<float> values = ops::KeysRotation(format.head_dim);
  HeadMatrices rotation(1, static_cast<int64_t>(values.size()));
  std::ranges::copy(values, rotation.Of(0));
  return rotation;
}

struct KeysOperations {
  using Format = ops::KeysFormat;
  using EncodeItem = ops::KeysEncodeWork;
  using SelectItem = ops::KeysSelectWork;
  static constexpr auto kEncodeMatrix = &EncodeItem::rotation;
  static constexpr auto kSelectMatrix = &SelectItem::rotation;
};

class KeysRetriever final : public MatrixRetriever<KeysOperations> {
 public:
  KeysRetriever(const Layout& layout, const ops::KeysFormat& format, uint64_t page_bytes)
      : MatrixRetriever(format.bits == 2 ? "keys2" : "keys", layout, format, page_bytes,
                        MakeRotation(format)) {}

  double scores_per_token() const override { return static_cast<double>(group_); }

 protected:
  void EncodeItems(Stream& stream, std::span<const ops::KeysEncodeWork> items) override {
    ops::KeysEncode(stream, format_, items);
  }
  void SelectItems(Stream& stream, std::span<ops::KeysSelectWork> items) override {
    ops::KeysSelect(stream, format_, group_, items);
  }
};

}  // namespace

ops::KeysFormat KeysFormatOf(const Layout& layout, std::string_view retriever) {
  return {.head_dim = layout.head_dim, .bits = retriever == "keys2" ? 2 : 4};
}

std::unique_ptr<Retriever> CreateKeysRetriever(const Layout& layout, std::string_view name,
                                               uint64_t page_bytes) {
  return std::make_unique<KeysRetriever>(layout, KeysFormatOf(layout, name), page_bytes);
}

}  // namespace litecache::kv

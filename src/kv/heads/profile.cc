#include "kv/heads/profile.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace litecache::kv {
namespace {

constexpr const char* kFormat = "litecache-profile";
constexpr int64_t kVersion = 1;
constexpr std::string_view kHata = "hata.";

// Far above any model, and products of such numbers fit in 64 bits.
constexpr int64_t kMaxLayers = int64_t{1} << 10;
constexpr int64_t kMaxHeads = int64_t{1} << 12;
constexpr int64_t kMaxHeadDim = int64_t{1} << 10;
constexpr int64_t kMaxBits = int64_t{1} << 12;

// Sums of many rounded shares may exceed their bound by this much.
constexpr float kSlack = 1e-3f;

using Shape = std::vector<int64_t>;

// A tensor of the file and the array that is read from it or written to it.
template <typename Values>
struct Field {
  std::string name;
  Values* values = nullptr;
  Shape shape;
  float low = 0, high = 0;  // range of the values
  DType dtype = DType::kF32;
};

// Every array except hata's, of a profile being read or a const one. `grid`: thresholds per curve.
template <typename AnyProfile>
auto FieldsOf(AnyProfile& p, int64_t grid) {
  using Values = std::remove_reference_t<decltype((p.similarity))>;
  const Shape heads = {p.layers, p.kv_heads};
  const Shape q_heads = {p.layers, p.q_heads};
  const Shape curves = {p.layers, p.kv_heads, grid};
  return std::vector<Field<Values>>{
      {"similarity", &p.similarity, heads, -1 - kSlack, 1 + kSlack},
      {"similarity_q", &p.similarity_q, q_heads, -1 - kSlack, 1 + kSlack},
      {"importance", &p.importance, q_heads, 0, 1},
      {"tau_grid", &p.tau_grid, {grid}, -1, 1},
      {"kept", &p.kept, curves, 0, 1 + kSlack},
      {"hits", &p.hits, curves, 0, 1},
      {"kept_predicted", &p.kept_predicted, curves, 0, 1 + kSlack},
      {"hits_predicted", &p.hits_predicted, curves, 0, 1},
      {"loki",
       &p.loki,
       {p.layers, p.kv_heads, p.head_dim, p.head_dim},
       -1 - kSlack,
       1 + kSlack,
       DType::kF16},
      {"skew",
       &p.skew,
       {p.layers, p.kv_heads, p.head_dim, p.head_dim},
       -1 - kSlack,
       1 + kSlack,
       DType::kF16},
  };
}

Shape HataShape(const Profile& p, int64_t bits) { return {p.layers, p.kv_heads, p.head_dim, bits}; }

template <typename T>
void Widen(const std::byte* data, std::vector<float>* out) {
  for (size_t i = 0; i < out->size(); ++i) {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    (*out)[i] = static_cast<float>(value);
  }
}

std::vector<float> ReadTensor(std::span<const std::byte> file, const io::TensorInfo& info,
                              const std::string& field, const Shape& shape, float low, float high,
                              const std::string& name) {
  if (info.shape != shape) {
    throw FileError("{}: field '{}' is {}, expected{}", name, field, info.ToString(),
                    io::TensorInfo{"", shape}.ToString());
  }
  const size_t width = info.dtype == "F32"                           ? 4
                       : info.dtype == "F16" || info.dtype == "BF16" ? 2
                                                                     : 0;
  if (width == 0) {
    throw FileError("{}: field '{}' is {}; F32, F16 and BF16 can be read", name, field,
                    info.ToString());
  }
  std::vector<float> values(static_cast<size_t>(info.bytes()) / width);
  const std::byte* data = file.data() + info.begin;
  if (info.dtype == "F32") {
    Widen<float>(data, &values);
  } else if (info.dtype == "F16") {
    Widen<f16>(data, &values);
  } else {
    Widen<bf16>(data, &values);
  }
  for (const float value : values) {
    if (!(value >= low && value <= high)) {
      throw FileError("{}: field '{}' holds {}; its values lie between {} and {}", name, field,
                      value, low, high);
    }
  }
  return values;
}

void ReadMetadata(const nlohmann::json& document, const std::string& name, Profile* p) {
  const io::JsonFields fields(document, name);
  const int64_t version = fields.RequiredInt("version", 0, int64_t{1} << 30);
  if (version != kVersion) {
    fields.Fail("version", fmt::format("this program reads version {}; make the profile again "
                                       "with `litecache profile`",
                                       kVersion));
  }
  p->layers = fields.RequiredInt("layers", 1, kMaxLayers);
  p->q_heads = fields.RequiredInt("q_heads", 1, kMaxHeads);
  p->kv_heads = fields.RequiredInt("kv_heads", 1, kMaxHeads);
  if (p->q_heads % p->kv_heads != 0) {
    fields.Fail("kv_heads", fmt::format("does not divide the {} query heads", p->q_heads));
  }
  p->head_dim = fields.RequiredInt("head_dim", 1, kMaxHeadDim);
  p->fingerprint = fields.String("fingerprint").value_or("");
  p->curve_budget = fields.Number("curve_budget", 0, 1).value_or(0);
  p->curve_context = fields.Int("curve_context", 0, int64_t{1} << 40).value_or(0);
  p->layer_seconds = fields.Number("layer_seconds", 0, 1e6).value_or(0);
  p->link_bytes_per_second = fields.Number("link_bytes_per_second", 0, 1e18).value_or(0);
  p->corpus = fields.String("corpus").value_or("");
  p->created = fields.String("created").value_or("");
}

void CheckGrid(const std::vector<float>& grid, const std::string& name) {
  for (size_t i = 1; i < grid.size(); ++i) {
    if (!(grid[i] > grid[i - 1])) {
      throw FileError("{}: field 'tau_grid' is not ascending: {} follows {}", name, grid[i],
                      grid[i - 1]);
    }
  }
}

// "hata.128" -> 128.
int64_t HataBits(const std::string& field, const std::string& name) {
  const char* begin = field.data() + kHata.size();
  const char* end = field.data() + field.size();
  int64_t bits = 0;
  const auto [stop, error] = std::from_chars(begin, end, bits);
  if (error != std::errc() || stop != end || bits < 1 || bits > kMaxBits) {
    throw FileError("{}: field '{}': '{}' must be followed by a number of bits from 1 to {}", name,
                    field, kHata, kMaxBits);
  }
  return bits;
}

}  // namespace

Profile::Fit Profile::FitThreshold(int64_t layer, int64_t head, double keep, bool predicted) const {
  LC_CHECK(layer >= 0 && layer < layers && head >= 0 && head < kv_heads);
  const std::vector<float>& kept_curve = predicted ? kept_predicted : kept;
  const std::vector<float>& hits_curve = predicted ? hits_predicted : hits;
  const size_t grid = tau_grid.size();
  Fit fit;
  if (kept_curve.empty()) return fit;
  const size_t offset = static_cast<size_t>(layer * kv_heads + head) * grid;
  const auto wanted = static_cast<float>(keep);  // rounded like the curve
  for (size_t g = grid; g > 0 && kept_curve[offset + g - 1] >= wanted; --g) {
    fit.tau = tau_grid[g - 1];
    fit.kept = double{kept_curve[offset + g - 1]};
    if (!hits_curve.empty()) fit.hits = double{hits_curve[offset + g - 1]};
  }
  return fit;
}

float Profile::FittedThreshold(int64_t layer, int64_t head, double keep, bool predicted) const {
  return FitThreshold(layer, head, keep, predicted).tau;
}

void Profile::Save(const std::filesystem::path& path) const {
  io::SafetensorsWriter writer;
  const nlohmann::ordered_json metadata = {
      {"version", kVersion},
      {"layers", layers},
      {"q_heads", q_heads},
      {"kv_heads", kv_heads},
      {"head_dim", head_dim},
      {"fingerprint", fingerprint},
      {"curve_budget", curve_budget},
      {"curve_context", curve_context},
      {"layer_seconds", layer_seconds},
      {"link_bytes_per_second", link_bytes_per_second},
      {"corpus", corpus},
      {"created", created},
  };
  writer.SetMetadata("format", kFormat);
  writer.SetMetadata("profile",
                     metadata.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  for (const auto& field : FieldsOf(*this, static_cast<int64_t>(tau_grid.size()))) {
    if (!field.values->empty()) writer.Add(field.name, field.dtype, field.shape, *field.values);
  }
  for (const auto& [bits, weights] : hata) {
    writer.Add(fmt::format("{}{}", kHata, bits), DType::kF16, HataShape(*this, bits), weights);
  }
  writer.Write(path);
}

Profile Profile::Parse(std::span<const std::byte> file, const std::string& name) {
  const auto tensors = io::ParseSafetensors(file, file.size(), name);
  const auto metadata = io::ParseSafetensorsMetadata(file, file.size(), name);
  const auto text = metadata.find("profile");
  if (const auto format = metadata.find("format");
      format == metadata.end() || format->second != kFormat || text == metadata.end()) {
    throw FileError("{}: not a profile: its metadata lacks format '{}'", name, kFormat);
  }
  Profile p;
  const std::string json_name = name + " (profile)";
  ReadMetadata(io::ParseJson(text->second, json_name), json_name, &p);

  int64_t grid = 0;
  if (const auto found = tensors.find("tau_grid"); found != tensors.end()) {
    if (found->second.shape.size() != 1) {
      throw FileError("{}: field 'tau_grid' is {}, expected a list", name,
                      found->second.ToString());
    }
    grid = found->second.shape[0];
  }
  for (const auto& field : FieldsOf(p, grid)) {
    const auto found = tensors.find(field.name);
    if (found == tensors.end()) continue;
    *field.values =
        ReadTensor(file, found->second, field.name, field.shape, field.low, field.high, name);
  }
  CheckGrid(p.tau_grid, name);
  for (const auto& [field, info] : tensors) {
    if (!field.starts_with(kHata)) continue;
    const int64_t bits = HataBits(field, name);
    constexpr float kMaxF16 = 65504;
    p.hata[static_cast<int>(bits)] =
        ReadTensor(file, info, field, HataShape(p, bits), -kMaxF16, kMaxF16, name);
  }
  return p;
}

Profile Profile::Load(const std::filesystem::path& path) {
  return Parse(io::MappedFile(path).bytes(), path.string());
}

void Profile::CheckModel(const Layout& layout, const std::string& model_fingerprint,
                         const std::filesystem::path& path) const {
  const auto check = [&](const char* what, int64_t own, int64_t models) {
    if (own != models) {
      throw FileError("{}: is another model's profile: {} = {}, this model has {}", path.string(),
                      what, own, models);
    }
  };
  check("layers", layers, layout.layers);
  check("q_heads", q_heads, layout.q_heads);
  check("kv_heads", kv_heads, layout.kv_heads);
  check("head_dim", head_dim, layout.head_dim);
  if (fingerprint != model_fingerprint) {
    throw FileError(
        "{}: is another model's profile: fingerprint '{}', this model's is '{}'; make one with "
        "`litecache profile`",
        path.string(), fingerprint, model_fingerprint);
  }
}

Profile ProfileOf(const Profile& profile, const HeadRange& heads) {
  Profile part = profile;
  part.q_heads = heads.q_heads;
  part.kv_heads = heads.kv_heads;
  // values [layers][all][...] become [layers][count][...].
  const auto take = [&](std::vector<float>* values, int64_t all, int64_t first, int64_t count) {
    if (values->empty()) return;
    const int64_t size = std::ssize(*values) / (profile.layers * all);
    std::vector<float> taken;
    taken.reserve(static_cast<size_t>(profile.layers * count * size));
    for (int64_t layer = 0; layer < profile.layers; ++layer) {
      const auto from = values->begin() + (layer * all + first) * size;
      taken.insert(taken.end(), from, from + count * size);
    }
    *values = std::move(taken);
  };
  for (auto* values : {&part.similarity, &part.kept, &part.hits, &part.kept_predicted,
                       &part.hits_predicted, &part.loki, &part.skew}) {
    take(values, profile.kv_heads, heads.first_kv, heads.kv_heads);
  }
  for (auto& [bits, values] : part.hata) {
    take(&values, profile.kv_heads, heads.first_kv, heads.kv_heads);
  }
  for (auto* values : {&part.similarity_q, &part.importance}) {
    take(values, profile.q_heads, heads.first_q, heads.q_heads);
  }
  return part;
}

}  // namespace litecache::kv

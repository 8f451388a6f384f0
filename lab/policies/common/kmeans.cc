#include "lab/policies/common/kmeans.h"

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "lab/policies/common/kmeans_cpu.h"

namespace litecache::lab::ops {
namespace {

void CheckPoints(const KeyPoints& points, int64_t clusters) {
  LC_CHECK(!points.rows.format.quantized(), "points are bf16 or f32");
  LC_CHECK(points.begin >= 0 && points.count >= 0 && points.rows.page_tokens >= 1);
  LC_CHECK(points.channel >= 0 && points.channels >= 1 &&
               points.channel + points.channels <= points.rows.format.head_dim,
           "channels [{}, {}) of {}", points.channel, points.channel + points.channels,
           points.rows.format.head_dim);
  LC_CHECK(clusters >= 1, "{} clusters", clusters);
}

}  // namespace

void AssignToCentroids(Stream& stream, std::span<const AssignWork> work) {
  for (const AssignWork& w : work) CheckPoints(w.points, w.clusters);
  cpu::AssignToCentroids(AsCpu(stream).pool(), work);
}

void UpdateCentroids(Stream& stream, std::span<const CentroidWork> work) {
  for (const CentroidWork& w : work) CheckPoints(w.points, w.clusters);
  cpu::UpdateCentroids(AsCpu(stream).pool(), work);
}

}  // namespace litecache::lab::ops

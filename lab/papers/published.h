// Figures of the papers, for the page: LiteCache (arXiv 2511.14510v2), H100 and A40, and CLO (v1 of
// the same paper). Figures without a table are what their text says of them.
#pragma once

#include <array>
#include <string>

namespace litecache::bench::papers::published {

// Table 1: non-overlapped cache overhead of RetroInfer over GPU kernel time, at 4K, 8K, ..., 128K.
inline constexpr std::array<int, 6> kOverheadH100 = {45, 51, 51, 59, 68, 63};
inline constexpr std::array<int, 6> kOverheadA40 = {31, 32, 33, 32, 41, 47};

// Table 2: cache memory on the GPU in GB. Llama3-8B at 32K, 64K, ..., 512K tokens in all;
// Qwen2.5-14B at 16K, ..., 256K.
inline constexpr std::array<double, 5> kMemoryRetroLlama = {1.20, 2.40, 4.80, 9.56, 19.12};
inline constexpr std::array<double, 5> kMemoryLiteLlama = {0.53, 1.09, 2.62, 8.19, 14.09};
inline constexpr std::array<double, 5> kMemoryRetroQwen = {0.90, 1.79, 3.59, 7.20, 14.34};
inline constexpr std::array<double, 5> kMemoryLiteQwen = {0.37, 0.74, 1.49, 3.44, 8.03};

// Table 3: hit ratios in percent at batch 1, the same lengths; below 0: none is given.
inline constexpr std::array<double, 5> kHitsRetroLlama = {91.2, 91.4, 91.4, -1, -1};
inline constexpr std::array<double, 5> kHitsLiteLlama = {83.5, 82.6, 84.0, 90.1, 88.6};
inline constexpr std::array<double, 5> kHitsRetroQwen = {93.1, 93.1, 93.4, 93.1, -1};
inline constexpr std::array<double, 5> kHitsLiteQwen = {75.8, 73.9, 65.2, 72.5, 68.3};
// At 8K: batches 4, 8, ..., 64 of Llama3-8B and 2, 4, ..., 32 of Qwen2.5-14B.
inline constexpr std::array<double, 5> kBatchHitsRetroLlama = {90.4, 90.1, 90.1, 90.0, 90.1};
inline constexpr std::array<double, 5> kBatchHitsLiteLlama = {79.5, 74.7, 76.7, 85.0, 80.0};
inline constexpr std::array<double, 5> kBatchHitsRetroQwen = {92.7, 91.3, 91.4, 91.3, 91.4};
inline constexpr std::array<double, 5> kBatchHitsLiteQwen = {80.6, 80.7, 80.7, 81.5, 80.8};

// CLO's Table 2: PQCache's and RetroInfer's hit ratios of Llama3-8B at 4K, 8K, ..., 128K.
inline constexpr std::array<double, 6> kHitsPqClo = {39, 40, 37, 37, 37, 36};
inline constexpr std::array<double, 6> kHitsRetroClo = {95, 94, 93, 92, 93, 93};

// Table 4: LongBench, RULER at 16K, 32K, 64K, 128K.
struct Accuracy {
  const char* model;
  const char* system;
  std::array<double, 5> scores;
};
inline constexpr Accuracy kAccuracy[] = {
    {"Qwen2.5-14B", "full", {53.34, 94.35, 94.48, 92.29, 88.85}},
    {"Qwen2.5-14B", "RetroInfer", {54.71, 94.73, 94.41, 92.37, 89.49}},
    {"Qwen2.5-14B", "InfiniGen", {52.74, 92.78, 92.19, 89.74, 85.26}},
    {"Qwen2.5-14B", "HATA", {53.19, 94.06, 94.13, 92.24, 88.47}},
    {"Qwen2.5-14B", "LiteCache + HATA", {53.15, 94.36, 94.22, 92.35, 88.94}},
    {"Llama3-8B", "full", {41.06, 86.07, 80.80, 76.26, 72.96}},
    {"Llama3-8B", "RetroInfer", {41.11, 86.36, 80.64, 76.26, 72.73}},
    {"Llama3-8B", "InfiniGen", {40.22, 79.70, 76.76, 72.96, 69.37}},
    {"Llama3-8B", "HATA", {41.58, 86.56, 80.94, 76.28, 73.87}},
    {"Llama3-8B", "LiteCache + HATA", {41.15, 85.65, 80.70, 75.94, 73.44}},
};

// Figure 9, text: LiteCache's throughput over the best of the other offloading systems, H100.
struct Margin {
  double least, most;
};
inline constexpr Margin kThroughputLlama = {2.08, 3.24};
inline constexpr Margin kThroughputQwen = {1.67, 2.27};

// Figure 12a, text: a decode step's latency by what each optimization takes off, Qwen2.5-14B, H100:
// graph, thresholds, aggregation, resident heads.
inline constexpr std::array<double, 4> kAblation16 = {41.1, 31.2, 28.3, 3.4};
inline constexpr std::array<double, 4> kAblation64 = {3.5, 43.1, 29.8, 25.2};

// CLO's Figure 13, text: 4 threads come close to GDRCopy's peak over PCIe 4.0, at any length.
inline constexpr double kLinkPeakGbps = 21.21;

}  // namespace litecache::bench::papers::published

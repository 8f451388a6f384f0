// RoPE's frequencies in a device's memory.
#pragma once

#include <span>

#include "device/device.h"
#include "model/config.h"

namespace litecache::model {

class DeviceRopeTable {
 public:
  DeviceRopeTable(Device& device, const RopeTable& table)
      : memory_(device.Allocate(table.inv_freq.size() * sizeof(float))),
        count_(table.inv_freq.size()),
        attention_factor_(table.attention_factor) {
    device.Upload(memory_.data(), table.inv_freq.data(), memory_.size());
  }
  std::span<const float> inv_freq() const { return {memory_.as<const float>(), count_}; }
  float attention_factor() const { return attention_factor_; }

 private:
  Buffer memory_;
  size_t count_;
  float attention_factor_;
};

}  // namespace litecache::model

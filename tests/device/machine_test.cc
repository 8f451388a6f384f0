#include "device/machine.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "device/cuda/cuda_devices.h"
#include "logged.h"

namespace litecache {
namespace {

TEST(Machine, AutoTakesAGpuOrSaysWhyNot) {
  Machine machine;
  const std::string log = testing::Logged([&] { machine = OpenMachine("auto", 1); });
  ASSERT_NE(machine.cpu, nullptr);
  if (machine.gpu != nullptr) {
    EXPECT_EQ(machine.compute().type(), DeviceType::kCuda);
    return;
  }
  EXPECT_EQ(&machine.compute(), machine.cpu.get());
  EXPECT_NE(log.find("running on the CPU: "), std::string::npos) << log;
  const CudaDevices found = FindCudaDevices();
  if (found.devices.empty()) {
    EXPECT_NE(log.find(found.reason), std::string::npos) << log;
  }
}

TEST(Machine, CpuLeavesTheGpuAlone) {
  const Machine machine = OpenMachine("cpu", 1);
  EXPECT_EQ(machine.gpu, nullptr);
  EXPECT_EQ(machine.compute().type(), DeviceType::kCpu);
}

// A GPU requested by name is not replaced by the CPU.
TEST(Machine, AMissingGpuIsAnErrorWithItsReason) {
  const CudaDevices found = FindCudaDevices();
  for (const std::string name : {"cuda", "cuda:0", "cuda:99"}) {
    if (name != "cuda:99" && !found.devices.empty()) continue;
    try {
      OpenMachine(name, 1);
      ADD_FAILURE() << name << " was opened";
    } catch (const Error& error) {
      const std::string message = error.what();
      const std::string reason = found.devices.empty() ? found.reason : "does not exist";
      EXPECT_NE(message.find(reason), std::string::npos) << message;
    }
  }
}

TEST(Machine, RefusesOtherNames) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda0", "CPU"}) {
    EXPECT_THROW(OpenMachine(name, 1), InvalidArgument) << name;
  }
}

}  // namespace
}  // namespace litecache

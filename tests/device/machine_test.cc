#include "device/machine.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

#include "base/error.h"
#include "device/cuda/cuda_devices.h"

namespace litecache {
namespace {

// What is logged while `body` runs.
template <typename Body>
std::string Logged(const Body& body) {
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  const auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  body();
  spdlog::set_default_logger(before);
  return text.str();
}

TEST(Machine, AutoTakesAGpuOrSaysWhyNot) {
  Machine machine;
  const std::string log = Logged([&] { machine = OpenMachine("auto", 1); });
  ASSERT_NE(machine.cpu, nullptr);
  if (machine.gpu != nullptr) {
    EXPECT_EQ(machine.compute().type(), DeviceType::kCuda);
    return;
  }
  EXPECT_EQ(&machine.compute(), machine.cpu.get());
  EXPECT_NE(log.find("this runs on the CPU: "), std::string::npos) << log;
  const CudaDevices found = FindCudaDevices();
  if (found.devices.empty()) {
    EXPECT_NE(log.find(found.why_none), std::string::npos) << log;
  }
}

TEST(Machine, CpuLeavesTheGpuAlone) {
  const Machine machine = OpenMachine("cpu", 1);
  EXPECT_EQ(machine.gpu, nullptr);
  EXPECT_EQ(machine.compute().type(), DeviceType::kCpu);
}

// One that was asked for by name is not replaced by the CPU.
TEST(Machine, AGpuThatIsNotThereIsAnErrorWithItsReason) {
  const CudaDevices found = FindCudaDevices();
  for (const std::string name : {"cuda", "cuda:0", "cuda:99"}) {
    if (name != "cuda:99" && !found.devices.empty()) continue;
    try {
      OpenMachine(name, 1);
      ADD_FAILURE() << name << " was opened";
    } catch (const Error& error) {
      const std::string message = error.what();
      const std::string reason = found.devices.empty() ? found.why_none : "does not exist";
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

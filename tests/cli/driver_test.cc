// Messages on machines whose NVIDIA driver is too old or does not start, using a fake driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cli/fixture_model.h"
#include "cli/program.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Driver {
  std::string name;
  int version, init;  // the reported version, and the result of cuInit
  std::string message;
};

class DriverTest : public ::testing::TestWithParam<Driver> {
 protected:
  static ProgramResult Run(const std::vector<std::string>& arguments) {
    ProgramOptions options;
    const char* libraries = std::getenv("LD_LIBRARY_PATH");
    options.environment = {std::string("LD_LIBRARY_PATH=" LC_FAKE_DRIVER) +
                               (libraries == nullptr ? "" : std::string(":") + libraries),
                           "FAKE_CUDA_DRIVER=" + std::to_string(GetParam().version),
                           "FAKE_CUDA_INIT=" + std::to_string(GetParam().init)};
    return RunProgram(arguments, options);
  }
  static ProgramResult Generate(const std::string& device) {
    return Run({"generate", "--model", SharedModel().path(), "--device", device, "-n", "3",
                "--temperature", "0", "--ignore-eos", "the cat"});
  }
};

TEST_P(DriverTest, CudaEndsWithTheReasonAndWhatToDo) {
  const ProgramResult result = Generate("cuda");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("no GPU: " + GetParam().message));
  EXPECT_EQ(result.out, "");
}

TEST_P(DriverTest, AutoRunsOnTheCpuAndWarns) {
  const ProgramResult result = Generate("auto");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("running on the CPU: " + GetParam().message));
  EXPECT_THAT(result.err, HasSubstr("warn"));
  const ProgramResult cpu = Generate("cpu");
  EXPECT_EQ(result.out, cpu.out);
  EXPECT_THAT(cpu.err, Not(HasSubstr("driver")));
}

TEST_P(DriverTest, VersionSaysIt) {
  const ProgramResult result = Run({"--version"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("CUDA: " LC_CUDA_MAJOR "."));
  EXPECT_THAT(result.out, HasSubstr("GPUs: none (" + GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Drivers, DriverTest,
    ::testing::Values(
        Driver{
            "Old", 11040, 0,
            "the NVIDIA driver is too old: it runs CUDA 11.4, and this program needs " LC_CUDA_MAJOR
            ".0 or later: update the driver"},
        Driver{"WithoutDevices", 99000, 100, "NVIDIA's driver finds no GPU"},
        Driver{
            "LibraryOfAnotherRelease", 99000, 803,
            "NVIDIA's driver does not start: system has unsupported display driver / cuda driver "
            "combination; it was updated while it ran, or its library and its kernel module are "
            "of different releases: restart the machine, or install both from one package"},
        Driver{"NotReady", 99000, 802,
               "NVIDIA's driver does not start: system not yet initialized; GPUs connected by "
               "NVSwitch need nvidia-fabricmanager: start that service"},
        Driver{"Unknown", 99000, 999,
               "NVIDIA's driver does not start: unknown error; nvidia-smi and the kernel's log "
               "(dmesg) say more"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace litecache::testing

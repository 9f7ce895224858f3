// What NVML says of the GPU of a rank that is lost, by a library without a GPU.
#include "launcher/agent/gpu_health.h"
#include "tests/support/built.h"

#include <catch2/catch.hpp>
#include <cstdlib>

using namespace rueda::launcher;

TEST_CASE("troubles of a GPU are named, what is usual is not", "[gpu_health]") {
  GpuState state;
  state.uncorrected = state.uncorrected_then = 4;
  state.throttled = 4;  // a power cap
  CHECK(describe_trouble("GPU-a", state) == "");
  state.xids = {79};
  CHECK(describe_trouble("GPU-a", state) ==
        ", and NVML says of its GPU (GPU-a): Xid 79 (it has fallen off the bus)");
  state.xids = {31, 999, 31};
  state.uncorrected = 6;
  state.remap_pending = state.remap_failed = true;
  state.throttled = 0x48;
  CHECK(describe_trouble("GPU-a", state) ==
        ", and NVML says of its GPU (GPU-a): Xid 31 (a kernel used an address that it may not), 2 "
        "times, Xid 999, 2 uncorrected ECC errors, a memory row could not be remapped: replace it, "
        "memory rows wait to be remapped: reset it, its clocks are held down by heat");
  GpuState slow;
  slow.throttled = 0x88;
  CHECK(describe_trouble("b", slow).ends_with("its clocks are held down by the power supply"));
  slow.throttled = 0x8;
  CHECK(describe_trouble("b", slow).ends_with("its clocks are held down by the hardware"));
}

TEST_CASE("the GPU that a lost rank used is asked about, and no other", "[gpu_health]") {
  setenv("FAKE_NVML", "GPU-7=xid:79,ecc:2,throttle:64", 1);
  constexpr std::chrono::seconds kGenerous{60};
  {
    GpuHealth health(built::kFakeNvml);
    CHECK(health.hint("GPU-7", kGenerous) ==
          ", and NVML says of its GPU (GPU-7): Xid 79 (it has fallen off the bus), 2 uncorrected "
          "ECC errors, its clocks are held down by heat");
    CHECK(health.hint("GPU-sound", kGenerous) == "");
    CHECK(health.hint("GPU-elsewhere", kGenerous) == "");
    CHECK(health.hint("", kGenerous) == "");
  }
  unsetenv("FAKE_NVML");
}

TEST_CASE("without NVML nothing is said, at once", "[gpu_health]") {
  unsetenv("FAKE_NVML");
  for (const char* library : {"none", "/nowhere/libnvidia-ml.so.1", built::kFakeNvml}) {
    GpuHealth health(library);
    CHECK(health.hint("GPU-7", std::chrono::seconds(60)) == "");
  }
}

// What NVML says of the GPU of a rank that is lost, by a library without a GPU.
#include "launcher/agent/gpu_health.h"
#include "tests/support/built.h"

#include <catch2/catch.hpp>
#include <cstdlib>

using namespace rueda::launcher;

TEST_CASE("troubles of a GPU are named, what is usual is not", "[gpu_health]") {
  GpuState state;
  state.uuid = "GPU-a";
  state.uncorrected = state.uncorrected_then = 4;
  state.throttled = 4;  // a power cap
  CHECK(describe_trouble(state) == "");
  state.xids = {79};
  CHECK(describe_trouble(state) ==
        ", and NVML says of its GPU (GPU-a): Xid 79 (it has fallen off the bus)");
  state.xids = {31, 999, 31};
  state.uncorrected = 6;
  state.remap_pending = state.remap_failed = true;
  state.throttled = 0x48;
  CHECK(describe_trouble(state) ==
        ", and NVML says of its GPU (GPU-a): Xid 31 (a kernel used an address that it may not), 2 "
        "times, Xid 999, 2 uncorrected ECC errors, a memory row could not be remapped: replace it, "
        "memory rows wait to be remapped: reset it, its clocks are held down by heat");
  GpuState slow;
  slow.throttled = 0x88;
  CHECK(describe_trouble(slow).ends_with("its clocks are held down by the power supply"));
  slow.throttled = 0x8;
  CHECK(describe_trouble(slow).ends_with("its clocks are held down by the hardware"));
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

TEST_CASE("a part of a GPU has the health of the GPU, and its own Xid errors alone",
          "[gpu_health]") {
  constexpr std::chrono::seconds kGenerous{60};
  const auto hints = [&](const char* gpu) {
    setenv("FAKE_NVML", gpu, 1);
    setenv("FAKE_NVML_PARTS", "MIG-first MIG-second", 1);
    std::string found;
    {
      GpuHealth health(built::kFakeNvml);
      for (const char* uuid : {"MIG-first", "GPU-second", "GPU-7"})
        found += health.hint(uuid, kGenerous) + "\n";
    }
    unsetenv("FAKE_NVML_PARTS");
    unsetenv("FAKE_NVML");
    return found;
  };
  const std::string says = ", and NVML says of its GPU ";
  const std::string hot = "its clocks are held down by heat\n";
  CHECK(hints("GPU-7=xid:31,instance:2,throttle:64") ==
        says + "(MIG-first, a part of GPU-7): " + hot + says +
            "(MIG-second, a part of GPU-7): Xid 31 (a kernel used an address that it may not), " +
            hot + says + "(GPU-7): Xid 31 (a kernel used an address that it may not), " + hot);
  // Of the whole GPU.
  const std::string bus = "Xid 79 (it has fallen off the bus)\n";
  CHECK(hints("GPU-7=xid:79") == says + "(MIG-first, a part of GPU-7): " + bus + says +
                                     "(MIG-second, a part of GPU-7): " + bus + says +
                                     "(GPU-7): " + bus);
}

TEST_CASE("without NVML nothing is said, at once", "[gpu_health]") {
  unsetenv("FAKE_NVML");
  for (const char* library : {"none", "/nowhere/libnvidia-ml.so.1", built::kFakeNvml}) {
    GpuHealth health(library);
    CHECK(health.hint("GPU-7", std::chrono::seconds(60)) == "");
  }
}

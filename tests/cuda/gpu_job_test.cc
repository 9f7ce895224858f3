// Processes with GPU tensors, started by ruedarun, on the fake driver and the stub of NCCL.
#include <catch2/catch.hpp>

#include "tests/launcher/job.h"
#include "tests/support/built.h"

namespace rueda::testing {
namespace {

using Catch::Contains;

Job::Setup on_stubs() {
  Job::Setup setup;
  setup.environment = {std::string("RUEDA_CUDA_DRIVER=") + built::kFakeCuda,
                       std::string("RUEDA_NCCL_LIBRARY=") + built::kStubNccl,
                       std::string("RUEDA_CUDA_KERNELS=") + built::kFakeKernels};
  return setup;
}

TEST_CASE("a job of processes reduces GPU and CPU tensors") {
  Job job({"-np", "3", built::kGpuProgram}, on_stubs());
  CHECK(job.wait() == 0);
  INFO(job.err());
  for (const char* line : {"rank 0 of 3: right", "rank 1 of 3: right", "rank 2 of 3: right"})
    CHECK_THAT(job.out(), Contains(line));
}

TEST_CASE("a job of processes reduces GPU arrays as XLA asks it to") {
  for (const char* size : {"1", "2", "3"}) {
    Job job({"-np", size, built::kXlaProgram}, on_stubs());
    CHECK(job.wait() == 0);
    INFO(job.err());
    CHECK_THAT(job.out(), Contains(std::string("rank 0 of ") + size + ": right"));
  }
  Job::Setup setup = on_stubs();
  setup.environment.push_back("FAKE_CUDA_ONE_UUID=1");
  Job job({"-np", "2", built::kXlaProgram}, setup);
  CHECK(job.wait() != 0);
  CHECK_THAT(job.err(), Contains("several ranks use the same GPU:"));
}

TEST_CASE("ranks that share a GPU are listed before NCCL starts") {
  Job::Setup setup = on_stubs();
  setup.environment.push_back("FAKE_CUDA_ONE_UUID=1");
  Job job({"-np", "2", built::kGpuProgram}, setup);
  CHECK(job.wait() != 0);
  CHECK_THAT(job.err(), Contains("several ranks use the same GPU:") && Contains("(shared)") &&
                            Contains("torch.cuda.set_device(hvd.local_rank())"));
}

TEST_CASE("ranks share a GPU where the user says so, up to as many") {
  Job::Setup setup = on_stubs();
  setup.environment.insert(setup.environment.end(),
                           {"FAKE_CUDA_ONE_UUID=1", "CUDA_VISIBLE_DEVICES=0,1"});
  Job two({"-np", "2", "--ranks-per-gpu", "2", built::kGpuProgram}, setup);
  CHECK(two.wait() == 0);
  INFO(two.err());
  CHECK_THAT(two.out(), Contains("rank 0 of 2: right"));
  CHECK_THAT(two.err(), Contains("2 ranks share each of 2 GPUs, from CUDA_VISIBLE_DEVICES, "));
  Job three({"-np", "3", "--ranks-per-gpu", "2", built::kGpuProgram}, setup);
  CHECK(three.wait() != 0);
  CHECK_THAT(three.err(), Contains("more than 2 ranks use the same GPU (RUEDA_RANKS_PER_GPU)"));
  Job five({"-np", "5", "--ranks-per-gpu", "2", built::kGpuProgram}, setup);
  CHECK(five.wait() == 2);
  CHECK_THAT(five.err(), Contains("--ranks-per-gpu 2: 5 ranks are too many for 2 GPUs"));
  Job environment({"-np", "1", "--ranks-per-gpu", "2", "/bin/sh", "-c",
                   "echo enabled $NCCL_MULTI_RANK_GPU_ENABLE"},
                  setup);
  CHECK(environment.wait() == 0);
  CHECK_THAT(environment.out(), Contains("enabled 1"));
}

TEST_CASE("when a rank is killed the others hear of it, although the GPU waits for the dead one") {
  Job job({"-np", "3", built::kGpuProgram, "kill"}, on_stubs());
  CHECK(job.wait() == 128 + 9);
  INFO(job.err());
  for (const char* line : {"rank 0 heard: 14", "rank 2 heard: 14"})
    CHECK_THAT(job.err(), Contains(line));
  CHECK(job.wait_until_gone());
}

TEST_CASE("what NVML says of a lost rank's GPU is in the report") {
  Job::Setup setup = on_stubs();
  setup.environment.insert(setup.environment.end(),
                           {std::string("RUEDA_NVML_LIBRARY=") + built::kFakeNvml,
                            "FAKE_NVML=GPU-00000000-0000-0000-0000-000000000002=xid:79,ecc:2"});
  Job job({"-np", "3", built::kGpuProgram, "kill"}, setup);
  CHECK(job.wait() == 128 + 9);
  CHECK_THAT(job.err(), Contains("killed by signal 9 (SIGKILL), and NVML says of its GPU "
                                 "(GPU-00000000-0000-0000-0000-000000000002): Xid 79 (it has "
                                 "fallen off the bus), 2 uncorrected ECC errors"));
}

TEST_CASE("of a rank on a part of a GPU, NVML is asked about the whole") {
  Job::Setup setup = on_stubs();
  const std::string part = "MIG-00000000-0000-0000-0000-000000000002";
  setup.environment.insert(
      setup.environment.end(),
      {std::string("RUEDA_NVML_LIBRARY=") + built::kFakeNvml, "FAKE_CUDA_MIG=1",
       "FAKE_NVML_PARTS=" + part, "FAKE_NVML=GPU-whole=xid:79"});
  Job job({"-np", "3", built::kGpuProgram, "kill"}, setup);
  CHECK(job.wait() == 128 + 9);
  CHECK_THAT(job.err(), Contains("and NVML says of its GPU (" + part +
                                 ", a part of GPU-whole): Xid 79 (it has fallen off the bus)"));
}

TEST_CASE("processes send GPU tensors to each other") {
  for (const char* size : {"1", "2", "3"}) {
    Job job({"-np", size, built::kGpuMessageProgram}, on_stubs());
    CHECK(job.wait() == 0);
    INFO(job.err());
    CHECK_THAT(job.out(), Contains(std::string("rank 0 of ") + size + ": right"));
  }
}

TEST_CASE("when a rank is killed those hear of it whose GPUs wait for its message") {
  Job job({"-np", "3", built::kGpuMessageProgram, "kill"}, on_stubs());
  CHECK(job.wait() == 128 + 9);
  INFO(job.err());
  for (const char* line : {"rank 0 heard: 14", "rank 2 heard: 14"})
    CHECK_THAT(job.err(), Contains(line));
  CHECK(job.wait_until_gone());
}

TEST_CASE("processes reduce and send GPU tensors in an ordered group") {
  for (const char* size : {"1", "2", "3"}) {
    Job job({"-np", size, built::kGpuGroupProgram}, on_stubs());
    CHECK(job.wait() == 0);
    INFO(job.err());
    CHECK_THAT(job.out(), Contains(std::string("rank 0 of ") + size + ": right"));
  }
}

TEST_CASE("when a member of a group is killed the others hear of it, although their GPUs wait") {
  Job job({"-np", "3", built::kGpuGroupProgram, "kill"}, on_stubs());
  CHECK(job.wait() == 128 + 9);
  INFO(job.err());
  for (const char* line : {"rank 0 heard: 14", "rank 2 heard: 14"})
    CHECK_THAT(job.err(), Contains(line));
  CHECK(job.wait_until_gone());
}

TEST_CASE("an aborted group ends on the GPUs of all its members") {
  Job job({"-np", "3", built::kGpuGroupProgram, "abort"}, on_stubs());
  CHECK(job.wait() == 0);
  INFO(job.err());
  for (const char* line : {"rank 0 heard: 1 ", "rank 2 heard: 1 ", "has ended the group: enough"})
    CHECK_THAT(job.err(), Contains(line));
}

TEST_CASE("the measuring program of gpu_check is whole: each size has its line") {
  Job job({"-np", "2", built::kGpuSpeed, "--short"}, on_stubs());
  CHECK(job.wait() == 0);
  INFO(job.err());
  for (const char* line :
       {"us to start a bucket of 12 tensors, ", "speed: 4 KiB: ", "speed: 16 KiB: "})
    CHECK_THAT(job.out(), Contains(line));
}

TEST_CASE("without the driver the error names the tensor and what to do") {
  Job::Setup setup;
  setup.environment = {"RUEDA_CUDA_DRIVER=/nowhere/libcuda.so.1"};
  Job job({"-np", "1", built::kGpuProgram}, setup);
  CHECK(job.wait() == 1);
  CHECK_THAT(job.err(), Contains("allreduce 'on the GPU': the CUDA driver cannot be opened"));
}

}  // namespace
}  // namespace rueda::testing

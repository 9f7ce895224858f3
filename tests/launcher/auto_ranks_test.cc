// -np auto: how many GPUs are visible, or cores.
#include "launcher/job/auto_ranks.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

using namespace rueda::launcher;

namespace {

using Texts = std::map<std::string, std::string>;

AutoRanks counted(const Texts& variables, int devices) {
  return auto_ranks(
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      devices, 6);
}

}  // namespace

TEST_CASE("several ranks for each GPU where they may share one", "[auto_ranks]") {
  const auto nothing = [](const char*) -> const char* { return nullptr; };
  const AutoRanks found = auto_ranks(nothing, 2, 6, 3);
  CHECK(found.count == 6);
  CHECK(found.why == "3 for each of 2 GPUs, from the driver's files");
  CHECK(auto_ranks(nothing, 0, 6, 3).count == 6);  // cores
}

TEST_CASE("ranks that share GPUs are told how, and when they are too many", "[auto_ranks]") {
  const auto nothing = [](const char*) -> const char* { return nullptr; };
  CHECK(describe_sharing(nothing, 2, 4, 2, true).value() ==
        "2 ranks share each of 2 GPUs, from the driver's files, under MPS");
  CHECK(describe_sharing(nothing, 2, 3, 2, false).value() ==
        "2 ranks share each of 2 GPUs, from the driver's files, without MPS: their kernels take "
        "turns (nvidia-cuda-mps-control -d starts it)");
  CHECK(describe_sharing(nothing, 0, 9, 2, false).value() == "");
  CHECK(describe_sharing(nothing, 2, 5, 2, false).status().message() ==
        "--ranks-per-gpu 2: 5 ranks are too many for 2 GPUs, from the driver's files; start 4 at "
        "most (-np auto), or let more share each");
}

TEST_CASE("MPS is running where its pipes are and its process is", "[auto_ranks]") {
  char root[] = "/tmp/rueda_mps_XXXXXX";
  REQUIRE(mkdtemp(root) != nullptr);
  const auto nothing = [](const char*) -> const char* { return nullptr; };
  const auto elsewhere = [](const char*) -> const char* { return "/pipes"; };
  CHECK_FALSE(mps_is_running(nothing, root));
  for (const char* folder : {"/tmp/nvidia-mps", "/pipes"}) {
    const std::string path = root + std::string(folder);
    std::filesystem::create_directories(path);
    std::ofstream(path + "/control") << "";
  }
  CHECK(mps_is_running(nothing, root));
  CHECK(mps_is_running(elsewhere, root));
  std::ofstream(root + std::string("/pipes/nvidia-cuda-mps-control.pid")) << "1\n";
  CHECK(mps_is_running(elsewhere, root));
  std::ofstream(root + std::string("/pipes/nvidia-cuda-mps-control.pid")) << "999999999\n";
  CHECK_FALSE(mps_is_running(elsewhere, root));
  CHECK(mps_is_running(nothing, root));
  std::filesystem::remove_all(root);
}

TEST_CASE("a rank for each GPU that is visible, else for each core", "[auto_ranks]") {
  struct Row {
    Texts variables;
    int devices, count;
    std::string why;
  };
  const std::vector<Row> table = {
      {{}, 0, 6, "6 cores"},
      {{}, 4, 4, "4 GPUs, from the driver's files"},
      {{{"CUDA_VISIBLE_DEVICES", "2,3"}}, 4, 2, "2 GPUs, from CUDA_VISIBLE_DEVICES"},
      {{{"CUDA_VISIBLE_DEVICES", "0"}}, 4, 1, "1 GPU, from CUDA_VISIBLE_DEVICES"},
      {{{"CUDA_VISIBLE_DEVICES", "0,-1,2"}}, 4, 1, "1 GPU, from CUDA_VISIBLE_DEVICES"},
      {{{"CUDA_VISIBLE_DEVICES", "-1"}}, 4, 6, "6 cores"},
      {{{"CUDA_VISIBLE_DEVICES", ""}}, 4, 6, "6 cores"},
      {{{"CUDA_VISIBLE_DEVICES", "NoDevFiles"}}, 4, 6, "6 cores"},
      {{{"CUDA_VISIBLE_DEVICES", "GPU-1f,MIG-2c"}, {"NVIDIA_VISIBLE_DEVICES", "GPU-1f"}},
       4,
       2,
       "2 GPUs, from CUDA_VISIBLE_DEVICES"},
      {{{"NVIDIA_VISIBLE_DEVICES", "GPU-1f, GPU-2c,GPU-3d"}},
       8,
       3,
       "3 GPUs, from NVIDIA_VISIBLE_DEVICES"},
      {{{"NVIDIA_VISIBLE_DEVICES", "all"}}, 8, 8, "8 GPUs, from the driver's files"},
      {{{"NVIDIA_VISIBLE_DEVICES", ""}}, 8, 6, "6 cores"},  // an MPIJob's launcher
      {{{"NVIDIA_VISIBLE_DEVICES", "void"}}, 8, 6, "6 cores"},
      {{{"NVIDIA_VISIBLE_DEVICES", "none"}}, 8, 6, "6 cores"},
  };
  for (const Row& row : table) {
    const AutoRanks found = counted(row.variables, row.devices);
    INFO(row.why);
    CHECK(found.count == row.count);
    CHECK(found.why == row.why);
  }
}

TEST_CASE("GPUs are counted by the driver's files", "[auto_ranks]") {
  char folder[] = "/tmp/auto_ranks_test.XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string root = folder;
  CHECK(count_gpu_devices(root) == 0);
  std::filesystem::create_directories(root + "/dev");
  for (const char* node : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"})
    std::ofstream(root + "/dev/" + node);
  CHECK(count_gpu_devices(root) == 3);
  // A container that sees the driver of all, and the devices of some.
  for (const char* bus : {"0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"})
    std::filesystem::create_directories(root + "/proc/driver/nvidia/gpus/" + bus);
  CHECK(count_gpu_devices(root) == 3);
  std::filesystem::remove_all(root + "/dev");
  CHECK(count_gpu_devices(root) == 4);
  std::filesystem::remove_all(root);
}

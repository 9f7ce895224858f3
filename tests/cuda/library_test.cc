// NCCL and the CUDA driver opened at run time: the order of search, what is missing, what is said.
#include <catch2/catch.hpp>

#include <dlfcn.h>

#include <future>
#include <thread>

#include "collectives/cuda/device.h"
#include "collectives/nccl/library.h"
#include "collectives/nccl/peer_info.h"
#include "tests/support/built.h"
#include "tests/support/folder.h"

namespace rueda::nccl {
namespace {

using Catch::Contains;

std::vector<Candidate> one(const char* path) { return {{path, "a test's", false}}; }

std::string why_not(const std::vector<Candidate>& candidates) {
  const auto library = Library::open(candidates);
  REQUIRE_FALSE(library.ok());
  CHECK(library.status().code() == rueda::Code::kFailedPrecondition);
  return library.status().message();
}

PeerInfo info(int version, const char* uuid, const char* path = "/lib/libnccl.so.2") {
  PeerInfo made;
  made.version = version;
  set_text(uuid, made.uuid, sizeof(made.uuid));
  set_text("node1", made.host, sizeof(made.host));
  set_text(path, made.path, sizeof(made.path));
  return made;
}

const std::vector<std::string> kNames = {"rank 0 (pid 10 on node1)", "rank 1 (pid 11 on node1)"};

TEST_CASE("NCCL is looked for in the process first, then beside rueda, then in the system") {
  const std::string maps =
      "7f00-7f01 r-xp 00000000 08:01 11   /opt/site/torch/lib/libtorch.so\n"
      "7f01-7f02 r-xp 00000000 08:01 12   /opt/site/nvidia/nccl/lib/libnccl.so.2\n"
      "7f02-7f03 rw-p 00000000 08:01 12   /opt/site/nvidia/nccl/lib/libnccl.so.2\n"
      "7f03-7f04 rw-p 00000000 00:00 0 \n"
      "7f04-7f05 r-xp 00000000 08:01 13   /old/libnccl.so.2 (deleted)";
  const auto found = candidates(maps, "", "/opt/site/rueda/lib/");
  REQUIRE(found.size() == 4);
  CHECK(found[0].path == "/opt/site/nvidia/nccl/lib/libnccl.so.2");
  CHECK(found[0].must_be_loaded);
  CHECK(found[1].path == "/opt/site/rueda/nvidia/nccl/lib/libnccl.so.2");
  CHECK(found[2].path == "/opt/site/nvidia/nccl/lib/libnccl.so.2");
  CHECK(found[3].path == "libnccl.so.2");
  const auto named = candidates(maps, "/mine/libnccl.so", "/opt/site/rueda/lib/");
  REQUIRE(named.size() == 1);
  CHECK(named[0].path == "/mine/libnccl.so");
  CHECK(candidates("", "", "").size() == 1);
}

TEST_CASE("a library is opened with its version and its path") {
  const auto library = Library::open(one(built::kStubNccl));
  REQUIRE(library.ok());
  const auto& nccl = *library.value();
  CHECK(nccl.version() == 22809);
  CHECK(nccl.describe() == std::string("NCCL 2.28.9 (") + built::kStubNccl + ", a test's)");
  CHECK(nccl->last_error != nullptr);
  CHECK(nccl->split != nullptr);
}

TEST_CASE("a copy that the process has is found in its maps") {
  const testing::Folder folder;
  const std::string copy = std::filesystem::absolute(folder.file("libnccl.so.2"));
  std::filesystem::copy_file(built::kStubNccl, copy);
  void* const loaded = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(loaded != nullptr);
  const auto library = Library::find("");
  REQUIRE(library.ok());
  CHECK(library.value()->path() == copy);
  CHECK(library.value()->origin() == "already loaded by this process");
}

TEST_CASE("missing optional functions are done without, missing needed ones are named") {
  const auto old = Library::open(one(built::kStubNcclOld));
  REQUIRE(old.ok());
  CHECK(old.value()->functions().last_error == nullptr);
  CHECK(old.value()->functions().make_pre_mul_sum == nullptr);
  CHECK(old.value()->check(2, "ncclAllReduce").message() ==
        "ncclAllReduce: unhandled system error");
  CHECK_THAT(why_not(one(built::kStubNcclBroken)),
             Contains("without ncclCommInitRankConfig; 2.14 or newer is needed"));
}

TEST_CASE("what is no library is said, with each place that was tried") {
  const std::string why = why_not({{"/nowhere/libnccl.so.2", "installed by pip", false},
                                   {"libnccl-none.so.9", "the system's", false}});
  CHECK_THAT(why, Contains("/nowhere/libnccl.so.2 (installed by pip): "));
  CHECK_THAT(why, Contains("libnccl-none.so.9 (the system's): "));
  CHECK_THAT(why, Contains("pip install nvidia-nccl-cu13"));
}

TEST_CASE("a loaded copy that does not do is not replaced by a second one") {
  void* const loaded = dlopen(built::kStubNcclBroken, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(loaded != nullptr);
  const std::string why = why_not({{built::kStubNcclBroken, "already loaded by this process", true},
                                   {built::kStubNccl, "the system's", false}});
  CHECK(why.find("the system's") == std::string::npos);
  dlclose(loaded);
}

// Not run by default: scripts/gpu_check asks for it, where there is one. It needs no GPU.
TEST_CASE("the real NCCL has what is needed", "[.][real]") {
  const char* const named = std::getenv("RUEDA_NCCL_LIBRARY");
  const auto library = Library::find(named == nullptr ? "" : named);
  INFO(library.status().message());
  REQUIRE(library.ok());
  WARN(library.value()->describe());
  CHECK(library.value()->functions().make_pre_mul_sum != nullptr);
  CHECK(library.value()
            ->check(2, "ncclAllReduce")
            .message()
            .find("ncclAllReduce: unhandled system") == 0);
}

TEST_CASE("too old a version is refused") {
  setenv("STUB_NCCL_VERSION", "21205", 1);
  CHECK_THAT(why_not(one(built::kStubNccl)), Contains("is NCCL 2.12.5; 2.14 or newer is needed"));
  unsetenv("STUB_NCCL_VERSION");
  CHECK(version_text(2708) == "2.7.8");
}

TEST_CASE("ranks with one version and a GPU each may begin") {
  CHECK(check_peers({info(22809, "GPU-a"), info(22809, "GPU-b")}, kNames).ok());
}

TEST_CASE("different versions are told with rank, version and path") {
  const Status status =
      check_peers({info(22809, "GPU-a"), info(22703, "GPU-b", "/other/libnccl.so.2")}, kNames);
  CHECK_THAT(status.message(),
             Contains("rank 0 (pid 10 on node1): NCCL 2.28.9, /lib/libnccl.so.2"));
  CHECK_THAT(status.message(),
             Contains("rank 1 (pid 11 on node1): NCCL 2.27.3, /other/libnccl.so.2"));
}

TEST_CASE("ranks that share a GPU are told with host and UUID, or allowed by all") {
  std::vector<PeerInfo> infos = {info(22809, "GPU-a"), info(22809, "GPU-a")};
  const Status status = check_peers(infos, kNames);
  CHECK_THAT(status.message(), Contains("rank 1 (pid 11 on node1) -> node1 -> GPU-a  (shared)"));
  CHECK_THAT(status.message(), Contains("ruedarun --ranks-per-gpu N"));
  infos[0].ranks_per_gpu = 2;
  CHECK_FALSE(check_peers(infos, kNames).ok());
  infos[1].ranks_per_gpu = 2;
  CHECK(check_peers(infos, kNames).ok());
}

TEST_CASE("more ranks on a GPU than all of them allow are told") {
  std::vector<PeerInfo> infos(4, info(22809, "GPU-a"));
  infos[3] = info(22809, "GPU-b");
  for (PeerInfo& each : infos) each.ranks_per_gpu = 3;
  const std::vector<std::string> names = {"rank 0", "rank 1", "rank 2", "rank 3"};
  CHECK(check_peers(infos, names).ok());
  infos[1].ranks_per_gpu = 2;
  const std::string text = check_peers(infos, names).message();
  CHECK_THAT(text, Contains("more than 2 ranks use the same GPU (RUEDA_RANKS_PER_GPU)") &&
                       Contains("GPU-a  (shared)") && Contains("hvd.local_rank() %"));
  CHECK(text.find("GPU-b  (shared)") == text.npos);
}

TEST_CASE("a rank that cannot take part is named on all, damage too") {
  std::vector<PeerInfo> infos = {info(22809, "GPU-a"), info(0, "")};
  infos[1].failed = 1;
  set_text("no driver", infos[1].path, sizeof(infos[1].path));
  CHECK_THAT(check_peers(infos, kNames).message(), Contains("rank 1 (pid 11 on node1): no driver"));
  infos[0].magic = 1;
  CHECK(check_peers(infos, kNames).code() == rueda::Code::kDataLoss);
}

}  // namespace
}  // namespace rueda::nccl

namespace rueda::cuda {
namespace {

TEST_CASE("without a driver the error says what to do") {
  const auto driver = DriverApi::open("/nowhere/libcuda.so.1");
  REQUIRE_FALSE(driver.ok());
  CHECK_THAT(driver.status().message(), Catch::Contains("docker run --gpus all"));
}

TEST_CASE("a library without the driver's functions is refused by the name of the first") {
  const auto driver = DriverApi::open(built::kStubNccl);
  REQUIRE_FALSE(driver.ok());
  CHECK_THAT(driver.status().message(), Catch::Contains("has no cuInit"));
}

TEST_CASE("a device has a name, a UUID and events that streams reach in order") {
  const auto live =
      reinterpret_cast<int64_t (*)()>(dlsym(dlopen(built::kFakeCuda, RTLD_NOW), "fake_cuda_live"));
  const int64_t before = live();
  {
    const auto driver = DriverApi::open(built::kFakeCuda);
    REQUIRE(driver.ok());
    CHECK(driver.value()->version() == 13000);
    auto device = Device::open(driver.value(), 3).value();
    CHECK(device->name() == "fake GPU 3");
    CHECK(device->uuid() == "GPU-00000000-0000-0000-0000-000000000004");
    CHECK_THAT(Device::open(driver.value(), 8).status().message(),
               Catch::Contains("no GPU 8: this process sees 8"));
    auto other = Device::open(driver.value(), 1).value();
    auto stream = Stream::create(device).value();
    auto event = Event::create(device).value();
    CHECK(event->query().value());
    REQUIRE(event->record(stream->handle()).ok());
    REQUIRE(event->wait().ok());
    CHECK(event->query().value());
    auto foreign = Event::create(other).value();
    CHECK_THAT(foreign->record(stream->handle()).message(),
               Catch::Contains("cuEventRecord: CUDA_ERROR_INVALID_HANDLE"));
    REQUIRE(event->make_wait(nullptr).ok());
    CHECK(Memory::allocate(device, 0).ok());
  }
  CHECK(live() == before);
}

template <typename Function>
Function driver_call(const std::string& path, const char* name) {
  return reinterpret_cast<Function>(dlsym(dlopen(path.c_str(), RTLD_NOW), name));
}

// What a driver must do for us; each thread begins without a context, as the coordinator's and the
// watcher's.
void check_driver(const std::string& path) {
  const auto driver = DriverApi::open(path);
  INFO(driver.status().message());
  REQUIRE(driver.ok());
  const DevicePtr device = Device::open(driver.value(), 0).value();
  CHECK_FALSE(device->name().empty());
  CHECK(device->uuid().size() == 40);
  const auto ours = Stream::create(device).value();
  const auto users = Stream::create(device).value();
  // A point of the default stream, waited for and asked for elsewhere.
  const auto event = Event::create(device).value();
  REQUIRE(event->record(nullptr).ok());
  REQUIRE(event->make_wait(ours->handle()).ok());
  const auto done = Event::create(device).value();
  REQUIRE(done->record(ours->handle()).ok());
  Status in_thread;
  std::thread([&] {
    in_thread = done->wait();
    const auto asked = done->query();
    if (in_thread.ok() && !(asked.ok() && asked.value()))
      in_thread = internal_error("is not reached");
  }).join();
  INFO(in_thread.message());
  CHECK(in_thread.ok());

  // Recorded anew in a stream that is faster: the new record alone counts, before and after the old
  // one is reached.
  {
    const auto launch =
        driver_call<Code (*)(StreamHandle, void (*)(void*), void*)>(path, "cuLaunchHostFunc");
    REQUIRE(launch != nullptr);
    std::promise<void> gate;
    auto open = gate.get_future();
    const auto slow = Stream::create(device).value();
    {
      const ContextScope scope(*device);
      REQUIRE(launch(
                  slow->handle(), [](void* g) { static_cast<std::future<void>*>(g)->wait(); },
                  &open) == kSuccess);
    }
    const auto again = Event::create(device).value();
    REQUIRE(again->record(slow->handle()).ok());
    REQUIRE(again->record(ours->handle()).ok());
    CHECK(again->wait().ok());
    gate.set_value();
    const auto old = Event::create(device).value();
    REQUIRE(old->record(slow->handle()).ok());
    CHECK(old->wait().ok());
    CHECK(again->query().value());
    REQUIRE(again->make_wait(slow->handle()).ok());
    REQUIRE(old->record(slow->handle()).ok());
    CHECK(old->wait().ok());
  }

  // While a stream of the user's is captured in CUDA's strictest mode, other threads make what they
  // need.
  const auto begin = driver_call<Code (*)(StreamHandle, int)>(path, "cuStreamBeginCapture_v2");
  const auto end = driver_call<Code (*)(StreamHandle, void**)>(path, "cuStreamEndCapture");
  const auto destroy = driver_call<Code (*)(void*)>(path, "cuGraphDestroy");
  REQUIRE((begin != nullptr && end != nullptr && destroy != nullptr));
  constexpr int kGlobal = 0;
  {
    const ContextScope scope(*device);
    REQUIRE(begin(users->handle(), kGlobal) == kSuccess);
  }
  const auto ready = Event::create(device).value();
  REQUIRE(ready->record(users->handle(), true).ok());
  Status beside;
  const auto captured_end = Event::create(device).value();
  std::thread([&] {
    const auto step = [&](const Status& status) {
      if (beside.ok()) beside = status;
    };
    std::vector<EventPtr> fresh;
    for (int i = 0; i < 4; ++i) fresh.push_back(Event::create(device).value());
    step(done->query().status());
    step(Memory::allocate(device, 1 << 20).status());
    step(Stream::create(device).status());
    step(ready->make_wait(ours->handle()));  // joins the capture
    step(captured_end->record(ours->handle(), true));
  }).join();
  INFO(beside.message());
  CHECK(beside.ok());
  REQUIRE(captured_end->make_wait(users->handle()).ok());
  void* graph = nullptr;
  {
    const ContextScope scope(*device);
    CHECK(end(users->handle(), &graph) == kSuccess);
    if (graph != nullptr) destroy(graph);
  }
  // An event of a capture is used again outside.
  REQUIRE(ready->record(ours->handle()).ok());
  CHECK(ready->wait().ok());
}

TEST_CASE("threads without a context of their own use events, and make things beside a capture") {
  check_driver(built::kFakeCuda);
}

// Not run by default: scripts/gpu_check asks for it, where there is a GPU.
TEST_CASE("the real driver does all of it", "[.][gpu]") { check_driver("libcuda.so.1"); }

}  // namespace
}  // namespace rueda::cuda

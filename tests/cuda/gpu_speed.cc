// gpu_speed [--short]: `ruedarun -np N gpu_speed` measures allreduces of GPU tensors through rueda
// against the same calls of NCCL, in turns in the same processes; and what it costs a thread to
// start a planned bucket. Run by scripts/gpu_check on a machine with a GPU; its tests run it on the
// neutral contributions.
//
// bare:  a blocking communicator of our own, ncclAllReduce in place in one stream
// rueda: persistent requests, each started behind that stream, which then waits for its end
// Both:  `kRow` in a row, then the host waits for the stream.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bindings/c/include/rueda/rueda.h"
#include "collectives/cuda/device.h"
#include "collectives/nccl/library.h"

namespace {

using namespace rueda;
using Clock = std::chrono::steady_clock;

constexpr size_t kRow = 8;

int rank = 0;
int ranks = 1;

[[noreturn]] void fail(const char* what, const std::string& why) {
  std::fprintf(stderr, "rank %d: Error: %s: %s\n", rank, what, why.c_str());
  std::exit(1);
}
void must(const Status& status, const char* what) {
  if (!status.ok()) fail(what, status.message());
}
template <typename T>
T must(Result<T> result, const char* what) {
  must(result.status(), what);
  return std::move(result).value();
}
void must(int32_t code, const rueda_error& error, const char* what) {
  if (code != RUEDA_OK) fail(what, error.message);
}

std::string setting(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Gpu {
  std::shared_ptr<const cuda::DriverApi> driver;
  std::shared_ptr<const nccl::Library> nccl;
  cuda::DevicePtr device;
  std::unique_ptr<cuda::Stream> stream;
  std::shared_ptr<cuda::Memory> memory;
  nccl::Handle handle = nullptr;

  void settle() const {
    const auto event = must(cuda::Event::create(device), "an event");
    must(event->record(stream->handle()), "an event");
    must(event->wait(), "the GPU");
  }
};

// All ranks have come.
void meet(rueda_context* context) {
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_op op = RUEDA_OP_INIT;
  op.kind = RUEDA_BARRIER;
  op.name = "meet";  // one without a name has ten, so that steps would only come again by tens
  must(rueda_run(context, &op, &error), error, "barrier");
}

Gpu open(rueda_context* context, size_t bytes) {
  Gpu gpu;
  gpu.driver = must(cuda::DriverApi::open(setting("RUEDA_CUDA_DRIVER")), "the driver");
  gpu.nccl = must(nccl::Library::find(setting("RUEDA_NCCL_LIBRARY")), "NCCL");
  int count = 0;
  must(gpu.driver->check((*gpu.driver)->device_count(&count), "cuDeviceGetCount"), "the driver");
  gpu.device = must(cuda::Device::open(gpu.driver, rueda_local_rank(context) % count), "the GPU");
  gpu.stream = must(cuda::Stream::create(gpu.device), "a stream");
  gpu.memory = must(cuda::Memory::allocate(gpu.device, bytes), "memory");
  if (rank == 0) std::printf("%s, %s\n", gpu.device->name().c_str(), gpu.nccl->describe().c_str());
  // NCCL's own, blocking, as who calls it would have it.
  const cuda::ContextScope scope(*gpu.device);
  nccl::UniqueId id{};
  if (rank == 0) must(gpu.nccl->check((*gpu.nccl)->get_unique_id(&id), "ncclGetUniqueId"), "NCCL");
  const int64_t shape[1] = {sizeof(id)};
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_op op = RUEDA_OP_INIT;
  op.kind = RUEDA_BROADCAST;
  op.dtype = 0;
  op.name = "id";
  op.input = op.output = &id;
  op.shape = shape;
  op.ndim = 1;
  must(rueda_run(context, &op, &error), error, "the id");
  nccl::Config config;
  config.blocking = 1;
  must(gpu.nccl->check((*gpu.nccl)->init_rank(&gpu.handle, ranks, id, rank, &config),
                       "ncclCommInitRankConfig"),
       "NCCL");
  return gpu;
}

class Repeated {
 public:
  Repeated(rueda_context* context, const Gpu& gpu, size_t count, const std::string& name)
      : gpu_(gpu), shape_{static_cast<int64_t>(count)} {
    rueda_op op = RUEDA_OP_INIT;
    op.kind = RUEDA_ALLREDUCE;
    op.reduce_op = 1;
    op.name = name.c_str();
    op.shape = shape_;
    op.ndim = 1;
    op.device = gpu.device->ordinal();
    must(rueda_request_create(context, &op, 1, 0, &request_, &error_), error_, "prepare");
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;
  ~Repeated() { rueda_request_release(request_); }
  void start(void* memory) {
    must(rueda_request_start(request_, memory, memory, gpu_.stream->handle(), &error_), error_,
         "start");
  }
  void finish() {
    must(rueda_request_wait(request_, 60, &error_), error_, "wait");
    must(rueda_request_stream_wait(request_, gpu_.stream->handle(), &error_), error_, "stream");
  }

 private:
  const Gpu& gpu_;
  const int64_t shape_[1];
  rueda_request* request_ = nullptr;
  rueda_error error_ = RUEDA_ERROR_INIT;
};

// Microseconds of one operation.
template <typename Function>
double spent(rueda_context* context, const Gpu& gpu, Function go) {
  gpu.settle();
  meet(context);
  const auto begun = Clock::now();
  go();
  gpu.settle();
  return std::chrono::duration<double, std::micro>(Clock::now() - begun).count() / kRow;
}

void compare(rueda_context* context, const Gpu& gpu, size_t bytes, int rounds) {
  const size_t count = bytes / 4;
  std::vector<std::unique_ptr<Repeated>> row;
  for (size_t i = 0; i < kRow; ++i) {
    row.push_back(std::make_unique<Repeated>(context, gpu, count,
                                             std::to_string(bytes) + "." + std::to_string(i)));
  }
  const auto place = [&](size_t i) { return gpu.memory->data() + i * bytes; };
  const auto bare = [&] {
    const cuda::ContextScope scope(*gpu.device);
    for (size_t i = 0; i < kRow; ++i) {
      const auto code = (*gpu.nccl)->all_reduce(place(i), place(i), count, nccl::Type::kFloat32,
                                                nccl::kSum, gpu.handle, gpu.stream->handle());
      must(gpu.nccl->check(code, "ncclAllReduce", gpu.handle), "NCCL");
    }
  };
  const auto ours = [&] {
    for (size_t i = 0; i < kRow; ++i) row[i]->start(place(i));
    for (const auto& prepared : row) prepared->finish();
  };
  std::vector<double> with_nccl;
  std::vector<double> with_rueda;
  for (int round = 0; round < rounds; ++round) {
    const double first = spent(context, gpu, bare);
    const double second = spent(context, gpu, ours);
    if (round < rounds / 3) continue;  // connections, the plan
    with_nccl.push_back(first);
    with_rueda.push_back(second);
  }
  if (rank != 0) return;
  const double x = median(with_nccl);
  const double y = median(with_rueda);
  const bool slow = bytes >= (1 << 20) ? y > 1.02 * x : y > x + 5;
  std::printf("speed: %zu KiB: %.1f us bare, %.1f us through rueda, %+.1f us, %.3f times%s\n",
              bytes >> 10, x, y, y - x, y / x, slow ? " TOO SLOW" : "");
}

void submit(rueda_context* context, const Gpu& gpu, size_t tensors, int rounds) {
  std::vector<std::unique_ptr<Repeated>> bucket;
  for (size_t i = 0; i < tensors; ++i) {
    bucket.push_back(std::make_unique<Repeated>(
        context, gpu, 1000, "bucket" + std::to_string(tensors) + "." + std::to_string(i)));
  }
  std::vector<double> times, lasts;
  int64_t planned = 0, wakeups = 0;
  for (int round = 0; round < rounds; ++round) {
    gpu.settle();
    meet(context);
    if (round == rounds / 3) {
      planned = rueda_counter(context, "planned_batches");
      wakeups = rueda_counter(context, "wakeups");
    }
    const auto begun = Clock::now();
    auto last = begun;
    for (size_t i = 0; i < tensors; ++i) {
      if (i + 1 == tensors) last = Clock::now();
      bucket[i]->start(gpu.memory->data() + i * 4096);
    }
    const auto ended = Clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(ended - begun).count());
    lasts.push_back(std::chrono::duration<double, std::micro>(ended - last).count());
    for (const auto& prepared : bucket) prepared->finish();
  }
  gpu.settle();
  if (rank != 0) return;
  times.erase(times.begin(), times.begin() + rounds / 3);
  lasts.erase(lasts.begin(), lasts.begin() + rounds / 3);
  const double found = median(times);
  planned = rueda_counter(context, "planned_batches") - planned;
  wakeups = rueda_counter(context, "wakeups") - wakeups;
  const bool all = planned >= static_cast<int64_t>(times.size());
  std::printf(
      "speed: %.1f us to start a bucket of %zu tensors, of which its last %.1f, "
      "%.1f wakeups of the background thread, %s (10 us)%s\n",
      found, tensors, median(lasts),
      static_cast<double>(wakeups) / static_cast<double>(times.size()),
      all ? "planned" : "not planned", found > 10 ? " TOO SLOW" : "");
}

// What the driver's and NCCL's own calls cost this thread: the least that a start can.
void bare_calls(const Gpu& gpu, int rounds) {
  const cuda::ContextScope scope(*gpu.device);
  const auto event = must(cuda::Event::create(gpu.device), "an event");
  const auto each = [&](auto call) {
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      gpu.settle();
      const auto begun = Clock::now();
      for (int i = 0; i < 10; ++i) call();
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count() / 10);
    }
    return median(times);
  };
  const double push = each([&] { const cuda::ContextScope again(*gpu.device); });
  int capture = 0;
  const double asked =
      each([&] { (void)(*gpu.driver)->stream_is_capturing(gpu.stream->handle(), &capture); });
  const double record = each([&] { must(event->record(gpu.stream->handle()), "an event"); });
  const double wait = each([&] { must(event->make_wait(gpu.stream->handle()), "an event"); });
  const double reduce = each([&] {
    const auto code =
        (*gpu.nccl)->all_reduce(gpu.memory->data(), gpu.memory->data(), 1000, nccl::Type::kFloat32,
                                nccl::kSum, gpu.handle, gpu.stream->handle());
    must(gpu.nccl->check(code, "ncclAllReduce", gpu.handle), "NCCL");
  });
  if (rank != 0) return;
  std::printf(
      "driver: %.2f us to push and pop a context, %.2f to ask for a capture, "
      "%.2f to record an event, %.2f to let a stream wait for it\n",
      push, asked, record, wait);
  std::printf("NCCL: %.2f us to start a bare call\n", reduce);
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_short = argc > 1 && std::strcmp(argv[1], "--short") == 0;
  // A host of its own for NCCL, where ranks share a GPU (scripts/gpu_check).
  if (setting("RUEDA_CHECK_SHARES_GPU") == "1")
    setenv("NCCL_HOSTID", ("rank-" + setting("RUEDA_RANK")).c_str(), 0);
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_context* context = nullptr;
  must(rueda_init(nullptr, &context, &error), error, "init");
  rank = rueda_rank(context);
  ranks = rueda_size(context);
  const size_t most = is_short ? size_t{16} << 10 : size_t{64} << 20;
  {
    const Gpu gpu = open(context, most * kRow);
    bare_calls(gpu, is_short ? 3 : 200);
    for (const size_t tensors : {1, 4, 12}) submit(context, gpu, tensors, is_short ? 9 : 200);
    // One rank's collectives are nothing to NCCL.
    for (size_t bytes = 4 << 10; bytes <= most && ranks > 1; bytes *= 4)
      compare(context, gpu, bytes, is_short ? 9 : bytes >= (16 << 20) ? 15 : 45);
    gpu.settle();
    meet(context);
    const cuda::ContextScope scope(*gpu.device);
    (void)(*gpu.nccl)->abort(gpu.handle);
  }
  rueda_shutdown(context);
  rueda_context_release(context);
  return 0;
}

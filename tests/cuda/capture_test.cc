// A planned step captured into a CUDA graph, on the fake driver: one launch of the graph is one
// step.
#include <catch2/catch.hpp>

#include "tests/cuda/gpu_world.h"
#include "tests/support/built.h"

struct CUgraph_st;

namespace rueda::testing {
namespace {

using Catch::Contains;
using Stream = cuda::StreamHandle;

template <typename Function>
Function driver_call(const char* name) {
  return reinterpret_cast<Function>(dlsym(dlopen(built::kFakeCuda, RTLD_NOW), name));
}
constexpr int kGlobal = 0;  // torch.cuda.graph's default: no thread may make unsafe calls meanwhile

int begin_capture(Stream stream) {
  return driver_call<int (*)(Stream, int)>("cuStreamBeginCapture_v2")(stream, kGlobal);
}
int end_capture(Stream stream, CUgraph_st** graph) {
  return driver_call<int (*)(Stream, CUgraph_st**)>("cuStreamEndCapture")(stream, graph);
}
int launch(CUgraph_st* graph, Stream stream) {
  return driver_call<int (*)(CUgraph_st*, Stream)>("cuGraphLaunch")(graph, stream);
}
int destroy(CUgraph_st* graph) {
  return driver_call<int (*)(CUgraph_st*)>("cuGraphDestroy")(graph);
}

// Tensors that stay where they are, a kernel that fills them, their sums, a kernel that looks at
// them.
struct Step {
  Step(Rank r, Runtime& of) : rank(r), runtime(of), user(must(of.machine().device(r))) {
    for (size_t i = 0; i < 5; ++i) data.emplace_back(20 + 100 * i);
  }
  void run() {
    user.run([this] {
      for (Floats& tensor : data)
        std::fill(tensor.begin(), tensor.end(), base + static_cast<float>(rank));
    });
    std::vector<Operation> sums;
    for (size_t i = 0; i < data.size(); ++i)
      sums.push_back(on_gpu(sum_of("t" + std::to_string(i), &data[i]), rank, user.handle()));
    // Together, so that all steps have the same batches, however late a rank is.
    for (const RequestPtr& work : must(runtime.start(std::move(sums)))) {
      must(end_of(work));
      must(work->device_end()->make_wait(user.handle()));
      all_released = all_released && work->released();
    }
    user.run([this] {
      seen = 0;
      for (const Floats& tensor : data) seen += tensor.back();
    });
  }
  // What the last run has seen.
  float result() {
    must(user.mark()->wait());
    return seen;
  }
  Rank rank;
  Runtime& runtime;
  UserStream user;
  std::vector<Floats> data;
  float base = 0;
  float seen = -1;
  bool all_released = true;
};

TEST_CASE("a planned step is captured into a graph, whose launches do the whole step") {
  GpuWorld gpus(2);
  std::vector<std::unique_ptr<Step>> steps;  // the GPUs use them to the end
  for (Rank rank = 0; rank < 2; ++rank)
    steps.push_back(std::make_unique<Step>(rank, gpus.world[rank]));
  const auto texts = gpus.world.run([&](Rank rank, Runtime& runtime) -> std::string {
    Step& step = *steps[static_cast<size_t>(rank)];
    for (int i = 0; i < 8; ++i) {
      step.base = static_cast<float>(i);
      step.run();
      if (step.result() != 5.0f * static_cast<float>(2 * i + 1)) return "wrong before the capture";
    }
    const int64_t planned = runtime.counter("planned_batches");
    if (planned == 0) return "not planned after 8 steps";
    if (begin_capture(step.user.handle()) != 0) return "begin";
    step.all_released = true;
    step.seen = -1;
    step.run();
    CUgraph_st* graph = nullptr;
    if (const int code = end_capture(step.user.handle(), &graph); code != 0)
      return "end: " + std::to_string(code);
    if (step.seen != -1) return "the capture has run";
    if (!step.all_released) return "what is captured is the graph's, not under way";
    if (runtime.counter("planned_batches") == planned) return "captured without the plan";
    const int64_t messages = runtime.counter("control_messages");
    const int64_t batches = runtime.counter("batches");
    for (int i = 0; i < 5; ++i) {
      step.base = static_cast<float>(10 * i);
      if (launch(graph, step.user.handle()) != 0) return "launch";
      if (step.result() != 5.0f * static_cast<float>(20 * i + 1)) return "wrong in a launch";
    }
    if (runtime.counter("control_messages") != messages || runtime.counter("batches") != batches)
      return "a launch asked the runtime";
    // And as before.
    for (int i = 0; i < 3; ++i) {
      step.base = static_cast<float>(i);
      step.run();
      if (step.result() != 5.0f * static_cast<float>(2 * i + 1)) return "wrong behind the capture";
    }
    destroy(graph);
    return "";
  });
  for (const std::string& text : texts) CHECK(text == "");
}

TEST_CASE("what is in no step plan cannot be captured, and says what to do") {
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([](Rank rank, Runtime& runtime) {
    UserStream user(must(runtime.machine().device(rank)));
    Floats data = filled(10, 1);
    must(finish(start(runtime, on_gpu(sum_of("x", &data), rank, user.handle()))));
    begin_capture(user.handle());
    const Status status = call(runtime, on_gpu(sum_of("x", &data), rank, user.handle()));
    CUgraph_st* graph = nullptr;
    const int ended = end_capture(user.handle(), &graph);
    if (graph != nullptr) destroy(graph);
    Floats again = filled(10, 1);
    must(finish(start(runtime, on_gpu(sum_of("x", &again), rank, user.handle()))));
    return status.message() + (ended == 0 ? "" : " the capture failed") +
           (again[9] == 2 ? "" : " wrong sum");
  });
  for (const std::string& text : texts) {
    CHECK_THAT(text, Contains("allreduce 'x'") && Contains("captured into a CUDA graph") &&
                         Contains("before the capture, with the same names and shapes"));
    CHECK_FALSE(has(text, "the capture failed"));
    CHECK_FALSE(has(text, "wrong sum"));
  }
}

TEST_CASE("the host cannot wait for what is captured: that is said, not waited for") {
  GpuWorld gpus(1);
  const auto texts = gpus.world.run([](Rank rank, Runtime& runtime) {
    UserStream user(must(runtime.machine().device(rank)));
    Floats data = filled(10, 1);
    const auto request = make(runtime, on_gpu(sum_of("x", &data), rank, user.handle()));
    auto* const memory = reinterpret_cast<std::byte*>(data.data());
    for (int i = 0; i < 10; ++i) must(request->run(memory, memory, user.handle()));
    begin_capture(user.handle());
    const Status status = request->run(memory, memory, user.handle());
    must(request->make_wait(user.handle()));
    CUgraph_st* graph = nullptr;
    const int ended = end_capture(user.handle(), &graph);
    if (graph != nullptr) destroy(graph);
    return std::to_string(ended) + status.message();
  });
  CHECK_THAT(texts[0], Contains("0its work is captured into a CUDA graph"));
}

}  // namespace
}  // namespace rueda::testing

// Gloo in C++ over TCP on the loopback device, as PyTorch uses it. The ranks are started with RANK,
// WORLD_SIZE and, as the place where they meet, the folder RUEDA_BENCH_STORE.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

#include <cstdlib>
#include <exception>
#include <memory>

#include "tests/benchmarks/peer.h"

namespace {

using namespace rueda;
using namespace rueda::bench;

class GlooSubject final : public Subject {
 public:
  explicit GlooSubject(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}

  Status begin(const Case& c, const std::vector<Tensor>& tensors) override {
    const bool known =
        c.operation != Operation::kReducescatter && c.operation != Operation::kGradients;
    if (!known) return {Code::kUnimplemented, "not in Gloo's C++ interface"};
    if (c.dtype != DataType::kF32 && c.dtype != DataType::kF16)
      return {Code::kUnimplemented, "measured with f32 and f16 only"};
    case_ = c;
    tensor_ = tensors.front();
    return {};
  }

  Status run() override {
    try {
      if (case_.dtype == DataType::kF16)
        run_as<gloo::float16>();
      else
        run_as<float>();
      return {};
    } catch (const std::exception& error) {
      return internal_error(error.what());
    }
  }

  void end() override {}

 private:
  template <typename T>
  void run_as() {
    auto* input = static_cast<T*>(tensor_.input);
    auto* output = static_cast<T*>(tensor_.output);
    switch (case_.operation) {
      case Operation::kAllreduce: {
        gloo::AllreduceOptions options(context_);
        options.setOutput(output, tensor_.output_count);
        void (*sum)(void*, const void*, const void*, size_t) = &gloo::sum<T>;
        options.setReduceFunction(sum);
        gloo::allreduce(options);
        break;
      }
      case Operation::kAllgather: {
        gloo::AllgatherOptions options(context_);
        options.setInput(input, tensor_.input_count);
        options.setOutput(output, tensor_.output_count);
        gloo::allgather(options);
        break;
      }
      case Operation::kBroadcast: {
        gloo::BroadcastOptions options(context_);
        options.setRoot(0);
        options.setOutput(output, tensor_.output_count);
        gloo::broadcast(options);
        break;
      }
      case Operation::kAlltoall: {
        gloo::AlltoallOptions options(context_);
        options.setInput(input, tensor_.input_count);
        options.setOutput(output, tensor_.output_count);
        gloo::alltoall(options);
        break;
      }
      default: break;
    }
  }

  std::shared_ptr<gloo::Context> context_;
  Case case_;
  Tensor tensor_;
};

int number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

}  // namespace

int main(int argc, char** argv) {
  const int rank = number("RANK"), size = number("WORLD_SIZE");
  const char* folder = std::getenv("RUEDA_BENCH_STORE");
  if (size < 1 || folder == nullptr) {
    std::fprintf(stderr, "RANK, WORLD_SIZE and RUEDA_BENCH_STORE say who this is\n");
    return 2;
  }
  try {
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->connectFullMesh(store, device);
    GlooSubject subject(context);
    return run_peer(&subject, rank, size, argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo: %s\n", error.what());
    return 1;
  }
}

#include "bindings/tensorflow/collective.h"

#include <rueda/rueda.h>

#include <bit>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/calls/calls.h"
#include "bindings/tensorflow/forms.h"

namespace rueda::tensorflow {
namespace {

constexpr int kMaxDims = 254;  // TensorFlow's

// Iterations of a loop that are under way at the same time have different names: so many there are.
constexpr int64_t kIterations = 128;

// What a collective is without its tensors: the attributes of its node.
struct Kernel {
  rueda_op op = RUEDA_OP_INIT;
  std::string name;  // "": unnamed
};

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { tf.DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, TensorDeleter>;

struct Call : calls::Call {
  ~Call() override = default;

  TF_OpKernelContext* context = nullptr;
  std::function<void()> done;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;  // empty: results are the requests' own
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> splits;

  void complete() override {
    if (code != RUEDA_OK) {
      // TensorFlow makes an internal error of UNAVAILABLE: it keeps that for its own communication.
      fail(code == RUEDA_UNAVAILABLE ? RUEDA_ABORTED : code, error.message);
    } else if (outputs.empty()) {
      give_results();
    }
    inputs.clear();
    outputs.clear();
    done();  // the context is gone after this
  }

 private:
  void fail(int32_t why, const char* message) {
    Status status(why, message);
    tf.OpKernelContext_Failure(context, status.get());
  }

  // Results in memory of the library, which is given back with the last tensor that looks at it.
  void give_results() {
    Status status;
    for (size_t i = 0; i < requests.size() && status.ok(); ++i) {
      const int dtype = tf.TensorType(inputs[i].get());
      const Form form = find_form(dtype);
      void* data = nullptr;
      int64_t shape[kMaxDims];
      const int ndim = rueda_request_output(requests[i], &data, shape, kMaxDims);
      auto bytes = static_cast<size_t>(form.bytes);
      for (int d = 0; d < ndim; ++d) bytes *= static_cast<size_t>(shape[d]);
      if (ops[i].kind == RUEDA_ALLTOALL) give_rows(status.get());
      Tensor result(tf.NewTensor(
          dtype, shape, ndim, data, bytes,
          [](void*, size_t, void* request) {
            rueda_request_release(static_cast<rueda_request*>(request));
          },
          std::exchange(requests[i], nullptr)));
      if (status.ok()) tf.SetOutput(context, static_cast<int>(i), result.get(), status.get());
    }
    if (!status.ok()) tf.OpKernelContext_Failure(context, status.get());
  }

  // Of an alltoall: how many came from each rank.
  void give_rows(TF_Status* status) {
    std::vector<int64_t> rows(static_cast<size_t>(rueda_request_rows(requests[0], nullptr, 0)));
    const auto count = static_cast<int64_t>(rows.size());
    rueda_request_rows(requests[0], rows.data(), static_cast<int32_t>(count));
    Tensor given(tf.AllocateOutput(context, 1, kInt32, &count, 1, rows.size() * 4, status));
    if (given == nullptr) return;
    auto* place = static_cast<int32_t*>(tf.TensorData(given.get()));
    for (size_t i = 0; i < rows.size(); ++i) place[i] = static_cast<int32_t>(rows[i]);
  }
};

bool gives_memory(int32_t kind) { return kind == RUEDA_ALLREDUCE || kind == RUEDA_BROADCAST; }

// The name in this iteration of the loop that the op is in, the same on all ranks.
std::string name_now(const Kernel& kernel, TF_OpKernelContext* context) {
  const int64_t iteration = tf.GetIterId(context) % kIterations;
  return iteration == 0 ? kernel.name : kernel.name + "@" + std::to_string(iteration);
}

// Takes the context's tensors; false where it has failed, as `status` or `call->fail` says.
bool read(const Kernel& kernel, Call* call, TF_Status* status) {
  TF_OpKernelContext* context = call->context;
  const int others = kernel.op.kind == RUEDA_ALLTOALL ? 2 : 1;
  const int count = tf.NumInputs(context) - others;
  const std::string base = kernel.name.empty() ? "" : name_now(kernel, context);
  call->names.resize(static_cast<size_t>(count));
  call->shapes.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    TF_Tensor* input = nullptr;
    tf.GetInput(context, i, &input, status);
    if (input == nullptr) return false;
    call->inputs.emplace_back(input);
    const int dtype = tf.TensorType(input);
    const Form form = find_form(dtype);
    if (form.dtype < 0) {
      tf.SetStatus(status, RUEDA_INVALID_ARGUMENT, "rueda: tensors of this dtype cannot travel");
      return false;
    }
    std::vector<int64_t>& shape = call->shapes[static_cast<size_t>(i)];
    const int ndim = tf.NumDims(input);
    if (ndim == 0 && !gives_memory(kernel.op.kind)) {
      tf.SetStatus(status, RUEDA_INVALID_ARGUMENT,
                   "rueda: rows of a tensor without dimensions: it needs a first one; use x[None]");
      return false;
    }
    for (int d = 0; d < ndim; ++d) shape.push_back(tf.Dim(input, d));
    rueda_op op = kernel.op;
    op.dtype = form.dtype;
    op.input = tf.TensorData(input);
    if (gives_memory(op.kind)) {
      call->outputs.emplace_back(tf.AllocateOutput(context, i, dtype, shape.data(), ndim,
                                                   tf.TensorByteSize(input), status));
      if (call->outputs.back() == nullptr) return false;
      op.output = tf.TensorData(call->outputs.back().get());
    }
    op.shape = shape.data();
    op.ndim = static_cast<int32_t>(shape.size());
    if (!kernel.name.empty()) {
      std::string& name = call->names[static_cast<size_t>(i)];
      name = rueda::calls::member_name(base, static_cast<size_t>(i));
      op.name = name.c_str();
    }
    call->ops.push_back(op);
  }
  if (kernel.op.kind != RUEDA_ALLTOALL) return true;
  TF_Tensor* given = nullptr;
  tf.GetInput(context, count, &given, status);
  if (given == nullptr) return false;
  const Tensor splits(given);
  const auto* numbers = static_cast<const int64_t*>(tf.TensorData(given));
  call->splits.assign(numbers, numbers + tf.TensorByteSize(given) / sizeof(int64_t));
  call->ops[0].splits = call->splits.data();
  call->ops[0].splits_count = static_cast<int32_t>(call->splits.size());
  return true;
}

int64_t number(TF_OpKernelConstruction* from, const char* name, TF_Status* status) {
  int64_t value = 0;
  if (tf.GetCode(status) == 0) tf.OpKernelConstruction_GetAttrInt64(from, name, &value, status);
  return value;
}

}  // namespace

void* make_collective(TF_OpKernelConstruction* from) {
  auto kernel = std::make_unique<Kernel>();
  Status status;
  kernel->op.kind = static_cast<int32_t>(number(from, "kind", status.get()));
  kernel->op.reduce_op = static_cast<int32_t>(number(from, "reduce_op", status.get()));
  kernel->op.root = static_cast<int32_t>(number(from, "root", status.get()));
  kernel->op.process_set = static_cast<int32_t>(number(from, "process_set", status.get()));
  kernel->op.prescale = std::bit_cast<double>(number(from, "prescale", status.get()));
  kernel->op.postscale = std::bit_cast<double>(number(from, "postscale", status.get()));
  int32_t parts = 0;
  int32_t bytes = 0;
  if (status.ok())
    tf.OpKernelConstruction_GetAttrSize(from, "tensor_name", &parts, &bytes, status.get());
  if (status.ok()) {
    kernel->name.resize(static_cast<size_t>(bytes));
    tf.OpKernelConstruction_GetAttrString(from, "tensor_name", kernel->name.data(),
                                          kernel->name.size(), status.get());
  }
  if (!status.ok()) tf.OpKernelConstruction_Failure(from, status.get());
  return kernel.release();
}

void run_collective(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  auto call = std::make_unique<Call>();
  call->context = context;
  call->done = *reinterpret_cast<const std::function<void()>*>(done);
  Status status;
  if (read(*static_cast<const Kernel*>(kernel), call.get(), status.get())) {
    calls::Calls::instance().submit(std::move(call));
    return;
  }
  tf.OpKernelContext_Failure(context, status.get());
  call->inputs.clear();
  call->outputs.clear();
  call->done();
}

void delete_collective(void* kernel) { delete static_cast<Kernel*>(kernel); }

}  // namespace rueda::tensorflow

// MPI's collectives; built once with Open MPI and once with MPICH. In place where the operation is,
// else into the caller's memory. `bench_openmpi [--persistent] CASE...`: each operation is a
// blocking call, or a persistent request that is started and waited for.
#include <mpi.h>
#if MPI_VERSION < 4  // Open MPI 4 has the standard's persistent collectives as an extension
#include <mpi-ext.h>
#define MPI_Allreduce_init MPIX_Allreduce_init
#define MPI_Allgather_init MPIX_Allgather_init
#define MPI_Reduce_scatter_block_init MPIX_Reduce_scatter_block_init
#define MPI_Bcast_init MPIX_Bcast_init
#define MPI_Alltoall_init MPIX_Alltoall_init
#endif

#include <cstring>
#include <vector>

#include "tests/benchmarks/peer.h"

namespace {

using namespace rueda;
using namespace rueda::bench;

Status status_of(int code) {
  return code == MPI_SUCCESS ? Status{} : internal_error("MPI code " + std::to_string(code));
}

class MpiSubject final : public Subject {
 public:
  explicit MpiSubject(bool persistent) : persistent_(persistent) {}

  Status begin(const Case& c, const std::vector<Tensor>& tensors) override {
    if (c.operation == Operation::kGradients)
      return {Code::kUnimplemented, "gradient sets are measured through frameworks"};
    switch (c.dtype) {
      case DataType::kF32: type_ = MPI_FLOAT; break;
      case DataType::kF64: type_ = MPI_DOUBLE; break;
      case DataType::kI32: type_ = MPI_INT; break;
      default: return {Code::kUnimplemented, "no such dtype in MPI"};
    }
    case_ = c;
    tensor_ = tensors.front();
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    return persistent_ ? make_request() : Status{};
  }

  Status run() override { return persistent_ ? run_persistent() : call(); }

  void end() override {
    if (request_ != MPI_REQUEST_NULL) MPI_Request_free(&request_);
  }
  std::string manner() const override { return persistent_ ? "persistent" : "call"; }

 private:
  Status run_persistent() {
    if (const int code = MPI_Start(&request_); code != MPI_SUCCESS) return status_of(code);
    return status_of(MPI_Wait(&request_, MPI_STATUS_IGNORE));
  }

  Status make_request() {
    const int input = static_cast<int>(tensor_.input_count);
    const int output = static_cast<int>(tensor_.output_count);
    const MPI_Comm world = MPI_COMM_WORLD;
    const MPI_Info info = MPI_INFO_NULL;
    switch (case_.operation) {
      case Operation::kAllreduce:
        return status_of(MPI_Allreduce_init(MPI_IN_PLACE, tensor_.input, input, type_, MPI_SUM,
                                            world, info, &request_));
      case Operation::kAllgather:
        return status_of(MPI_Allgather_init(tensor_.input, input, type_, tensor_.output, input,
                                            type_, world, info, &request_));
      case Operation::kReducescatter:
        return status_of(MPI_Reduce_scatter_block_init(tensor_.input, tensor_.output, output, type_,
                                                       MPI_SUM, world, info, &request_));
      case Operation::kBroadcast:
        return status_of(MPI_Bcast_init(tensor_.input, input, type_, 0, world, info, &request_));
      case Operation::kAlltoall:
        return status_of(MPI_Alltoall_init(tensor_.input, input / size_, type_, tensor_.output,
                                           input / size_, type_, world, info, &request_));
      default: return {Code::kUnimplemented, "not a collective"};
    }
  }

  Status call() {
    const int input = static_cast<int>(tensor_.input_count);
    const int output = static_cast<int>(tensor_.output_count);
    int code = MPI_SUCCESS;
    switch (case_.operation) {
      case Operation::kAllreduce:
        code = MPI_Allreduce(MPI_IN_PLACE, tensor_.input, input, type_, MPI_SUM, MPI_COMM_WORLD);
        break;
      case Operation::kAllgather:
        code = MPI_Allgather(tensor_.input, input, type_, tensor_.output, input, type_,
                             MPI_COMM_WORLD);
        break;
      case Operation::kReducescatter:
        code = MPI_Reduce_scatter_block(tensor_.input, tensor_.output, output, type_, MPI_SUM,
                                        MPI_COMM_WORLD);
        break;
      case Operation::kBroadcast:
        code = MPI_Bcast(tensor_.input, input, type_, 0, MPI_COMM_WORLD);
        break;
      case Operation::kAlltoall:
        code = MPI_Alltoall(tensor_.input, input / size_, type_, tensor_.output, input / size_,
                            type_, MPI_COMM_WORLD);
        break;
      default: break;
    }
    return status_of(code);
  }

  const bool persistent_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  Case case_;
  Tensor tensor_;
  MPI_Datatype type_ = MPI_FLOAT;
  int size_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const bool persistent = argc > 1 && std::strcmp(argv[1], "--persistent") == 0;
  MpiSubject subject(persistent);
  const int skipped = persistent ? 1 : 0;
  const int code = run_peer(&subject, rank, size, argc - skipped, argv + skipped);
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  return code;
}

// MPI's collectives; built once with Open MPI and once with MPICH. In place where the operation is.
#include <mpi.h>

#include <vector>

#include "tests/benchmarks/peer.h"

namespace {

using namespace rueda;
using namespace rueda::bench;

class MpiSubject final : public Subject {
 public:
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
    return {};
  }

  Status run() override {
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
    return code == MPI_SUCCESS ? Status{} : internal_error("MPI code " + std::to_string(code));
  }

  const void* result(size_t) const override { return tensor_.output; }
  void end() override {}

 private:
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
  MpiSubject subject;
  const int code = run_peer(&subject, rank, size, argc, argv);
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  return code;
}

#include "launcher/command/backends.h"

namespace rueda::launcher {
namespace {

constexpr const char* kAll =
    "allreduce, grouped_allreduce, allgather, broadcast, reducescatter, alltoall, barrier";

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

}  // namespace

std::vector<Backend> backends(const std::string& transport) {
  const bool everywhere = transport == "tcp" || transport == "mpi-only";
  const bool mpi = transport == "mpi" || transport == "mpi-only";
  const std::string asked = "RUEDA_TRANSPORT=" + transport;
  const std::string network = mpi ? "native algorithms over MPI" : "native algorithms over TCP";
  const std::string why_network =
      asked + (mpi ? ": MPI moves the bytes; its own collectives know no 16-bit floats, no process "
                     "sets in any order and no error for ranks that disagree"
                   : ": needs nothing but a network");
  return {{kAll, "inside a host", everywhere ? network : "native, shared memory",
           everywhere ? asked + ": not shared memory" : asked + ": the fastest way here"},
          {kAll, "between hosts", network, why_network},
          {"all of them on CUDA tensors", "everywhere", "NCCL",
           "opened at run time with the first GPU tensor; not run on a GPU yet, docs/gpu.md"}};
}

std::string backends_text(const std::string& transport) {
  std::string text = padded("where", 16) + padded("backend", 30) + "collectives and reason\n";
  for (const Backend& backend : backends(transport)) {
    text += padded(backend.where, 16) + padded(backend.name, 30) + backend.collectives + " (" +
            backend.reason + ")\n";
  }
  return text;
}

}  // namespace rueda::launcher

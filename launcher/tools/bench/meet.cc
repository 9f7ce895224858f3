#include "launcher/tools/bench/meet.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "collectives/base/unique_fd.h"

namespace rueda::bench {

bool is_a_rank() {
  for (const char* name :
       {"RUEDA_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

std::vector<std::string> job_command(int ranks, const std::vector<std::string>& arguments) {
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string ruedarun = std::filesystem::path(self).parent_path() / "ruedarun";
  std::vector<std::string> words = {ruedarun,      "-np", std::to_string(ranks),
                                    "--no-prefix", self,  "bench"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

Result<Meeting> meet(const LibRueda& api, rueda_context* context, const std::string& given) {
  const int rank = api.rank(context), size = api.size(context);
  if (!given.empty()) return Meeting::open(given, rank, size);
  if (api.local_size(context) != size)
    return Status{Code::kUnimplemented, "the ranks must be on one machine"};
  // A file without a name of its own: whenever the ranks end, nothing is left.
  char name[64] = {};
  UniqueFd file;
  if (rank == 0) {
    file = UniqueFd(memfd_create("rueda-bench", MFD_CLOEXEC));
    // Without a file, open() fails on every rank.
    std::snprintf(name, sizeof(name), "/proc/%d/fd/%d", getpid(), file.get());
  }
  const auto run = [&](int32_t kind, const char* label, void* data, int64_t bytes) {
    rueda_op op = RUEDA_OP_INIT;
    op.kind = kind;
    op.name = label;
    op.dtype = RUEDA_UINT8;
    op.input = op.output = data;
    op.shape = &bytes;
    op.ndim = kind == RUEDA_BARRIER ? 0 : 1;
    rueda_error error = RUEDA_ERROR_INIT;
    return status_of(api.run(context, &op, &error), error);
  };
  Status status = run(RUEDA_BROADCAST, "bench.meeting", name, sizeof(name));
  auto meeting = Meeting::open(name, rank, size);
  if (status.ok()) status = run(RUEDA_BARRIER, "bench.met", nullptr, 0);
  RUEDA_RETURN_IF_ERROR(status);
  return meeting;
}

}  // namespace rueda::bench

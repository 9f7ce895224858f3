#include "collectives/host/threads.h"

#include <sys/resource.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "collectives/host/cgroup.h"

namespace rueda::host {

Status no_process(const std::string& what, int err) {
  if (err != EAGAIN) return errno_status(what, err);
  std::string why;
  const std::optional<uint64_t> group = cgroup_process_limit(read_small_file);
  rlimit own = {};
  const bool limited = getrlimit(RLIMIT_NPROC, &own) == 0 && own.rlim_cur != RLIM_INFINITY;
  if (group)
    why = "the control group allows " + std::to_string(*group) +
          " (pids.max; docker run --pids-limit)";
  if (limited) {
    if (group) why += ", ";
    why += "the user " + std::to_string(own.rlim_cur) + " (ulimit -u)";
  }
  if (why.empty()) why = "the system allows no more (kernel.threads-max, kernel.pid_max)";
  return {Code::kResourceExhausted,
          what + ": no processes or threads are left; " + why + ", and a job takes about 5 a rank"};
}

Result<std::thread> start_thread(std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return no_process("cannot start another thread", error.code().value());
  }
}

}  // namespace rueda::host

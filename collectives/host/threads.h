// Starting threads and processes where there may be none left.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "collectives/base/status.h"

namespace rueda::host {

// Why `what` ("cannot start another process") failed with this errno. Of EAGAIN it names the limit
// that was met: pids.max of a control group, or ulimit -u.
Status no_process(const std::string& what, int err);

// std::thread throws where there are none left, which would end the process.
Result<std::thread> start_thread(std::function<void()> run);

}  // namespace rueda::host

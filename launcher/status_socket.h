// The socket at which `rueda status` asks a running job: an abstract Unix socket, so that nothing is
// left behind. It answers processes of the same user (and root) and no others.
//
// The conversation: the client connects and reads JSON to the end; it sends nothing.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"

namespace rueda::launcher {

Result<UniqueFd> listen_for_status(const std::string& job_id);
// Accepts one client that waits, answers and closes; never blocks for long. `answer` is called only for
// a client that may know.
void answer_status(int listener, const std::string& text);

// Jobs of this user on this host, by their sockets.
std::vector<std::string> running_jobs();
// A job's answer. kNotFound: there is no such job.
Result<std::string> ask_status(const std::string& job_id);

}  // namespace rueda::launcher

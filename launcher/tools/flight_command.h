// `rueda explain`, `rueda status` and `rueda drain`.
#pragma once

#include <string>
#include <vector>

namespace rueda::launcher {

// Arguments without the command's name. Returns the exit code: 0, 1 if there is nothing to show, or
// kUsageError.
int run_explain(const std::vector<std::string>& arguments);
// The only job of this user on this host; empty, and said so, unless there is one. command: the
// word behind `rueda` that asks, and what follows JOB there.
std::string only_job(const std::string& command, const std::string& more = "");
int run_status(const std::vector<std::string>& arguments);
int run_drain(const std::vector<std::string>& arguments);

}  // namespace rueda::launcher

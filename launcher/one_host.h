// A job on this host alone: its agent and its controller in one process below the driver.
#pragma once

#include "launcher/agent/agent.h"
#include "launcher/controller/job_books.h"

namespace rueda::launcher {

// Blocks until the job has ended; returns ruedarun's exit code.
int run_on_one_host(const BooksPlan& books, AgentPlan agent);

}  // namespace rueda::launcher

#include "launcher/one_host.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "collectives/base/number_text.h"
#include "launcher/controller/local_controller.h"
#include "launcher/job/exit_code.h"
#include "launcher/job/job_id.h"
#include "launcher/processes/guard.h"

namespace rueda::launcher {
namespace {

std::string start_line(const AgentPlan& plan) {
  const char* const transport = find_variable(plan.base_environment, "RUEDA_TRANSPORT");
  const char* const chosen = find_variable(plan.base_environment, "OMP_NUM_THREADS");
  int threads = chosen == nullptr ? 0 : std::atoi(chosen);
  for (const RankBinding& binding : plan.bindings) {
    if (chosen == nullptr) threads = std::max(threads, binding.threads);
  }
  const std::string way =
      transport == nullptr || std::string_view(transport) != "tcp" ? "shared memory" : "TCP";
  const auto ranks = static_cast<size_t>(plan.options.num_proc);
  return counted(ranks, "rank") + (plan.elastic ? " to begin with" : "") + " on this host" +
         (ranks > 1 ? ", over " + way : "") +
         (threads > 0 ? ", " + counted(static_cast<size_t>(threads), "thread") + " each" : "");
}

}  // namespace

int run_on_one_host(const BooksPlan& books, AgentPlan agent) {
  return guard("agent", [&](GuardLink link) {
    auto key = rendezvous::JobKey::make_random();
    if (!key.ok()) return fail(kLauncherFailure, key.status().message());
    agent.key = std::move(key).value();
    agent.job_id = make_job_id();
    agent.explains = true;
    agent.guard = link.guard;
    agent.hangup_ignored = link.hangup_ignored;
    LocalController controller(books, start_line(agent));
    run_agent(agent, std::move(link.fd), &controller);
    return controller.exit_code();
  });
}

}  // namespace rueda::launcher

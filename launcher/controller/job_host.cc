#include "launcher/controller/job_host.h"

#include "launcher/hosts/host_environment.h"
#include "launcher/hosts/member_wire.h"
#include "launcher/job/rank_environment.h"

namespace rueda::launcher {

std::string name_hosts(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i != 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  return text;
}

control::Assign make_assignment(const JobText& job, const HostPlan& host, int host_index,
                                const std::vector<std::string>& command,
                                const std::vector<std::string>& environment) {
  control::Assign assign;
  assign.set_job_id(job.job_id);
  assign.set_job_key(job.key);
  assign.set_host_index(host_index);
  assign.set_host_name(host.host.host);
  assign.set_dead_seconds(job.dead_seconds);
  for (const RankPlace& place : host.places) to_wire(place, assign.add_places());
  for (const std::string& word : command) assign.add_command(word);
  std::vector<std::string> variables = environment;
  if (find_variable(variables, "RUEDA_TCP_ADDRESS") == nullptr)
    set_variable(&variables, "RUEDA_TCP_ADDRESS", job.address);
  set_variable(&variables, "HOROVOD_HOSTNAME", host.host.host);
  for (const std::string& entry : variables) assign.add_environment(entry);
  for (const char* name : kVariablesOfHosts) assign.add_own_variables(name);
  assign.set_folder(job.folder);
  assign.set_bind(job.bind);
  assign.set_grace_seconds(job.grace_seconds);
  assign.set_silence_seconds(job.silence_seconds);
  assign.set_verbose(job.verbose);
  assign.set_hangup_ignored(job.hangup_ignored);
  assign.set_elastic(job.elastic);
  assign.set_num_proc(job.num_proc);
  assign.set_slots(host.host.slots);
  for (const std::string& address : job.door_addresses) assign.add_door_addresses(address);
  assign.set_driver_timeout(job.driver_timeout);
  assign.set_address(job.address);
  return assign;
}

}  // namespace rueda::launcher

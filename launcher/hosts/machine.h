// What this machine is and answers to.
#pragma once

#include <istream>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "runtime/rendezvous/job_key.h"

namespace rueda::launcher {

std::string host_name();
// Names and addresses that mean this machine.
std::vector<std::string> own_names();
// Of the text of /etc/hosts, the names that begin with `name` and a dot, and what stands of them
// before a cluster's domain: a pod's "job-launcher.job.ns.svc.cluster.local" is written as
// "job-launcher.job.ns.svc" in its hostfile.
std::vector<std::string> longer_names(std::istream& hosts, const std::string& name);
// Equal for two processes that could share memory: boot, network namespace and user, as ranks tell
// each other (runtime/membership/place.h).
std::string machine_identity();
// Cores that we may run on.
int count_usable_cores();
// Path of the program that is running.
std::string own_program();
// "node7:4711" or "10.0.0.1:4711" -> numeric addresses with the port.
Result<std::vector<std::string>> resolve_address(const std::string& text);
// From its 32 bytes.
Result<rendezvous::JobKey> key_from(const std::string& bytes);

}  // namespace rueda::launcher

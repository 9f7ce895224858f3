// What the command line says of an elastic job, as its controller needs it.
#pragma once

#include "collectives/base/config.h"
#include "launcher/controller/elastic_members.h"
#include "launcher/job/host_plan.h"
#include "launcher/surroundings.h"

namespace rueda::launcher {

// `environment`: of the discovery script.
ElasticPlan elastic_plan(const Options& options, const Config& config, const Standing& standing,
                         const std::vector<std::string>& environment);
// Of a job over several, an agent for each name; none where all are names of this machine, or a
// script will find them.
std::vector<HostPlan> elastic_hosts(const Options& options, const ElasticPlan& plan);
// Of the hosts that are known before the job begins; as many as ranks where a script finds them.
int known_slots(const ElasticPlan& plan);

}  // namespace rueda::launcher

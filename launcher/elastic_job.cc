#include "launcher/elastic_job.h"

#include <algorithm>
#include <random>

#include "launcher/hosts/machine.h"

namespace rueda::launcher {
namespace {

membership::Policy policy_of(const Options& options, const Config& config) {
  const ElasticOptions& elastic = options.elastic;
  membership::Policy policy;
  policy.elastic = true;
  policy.start_np = options.num_proc;
  policy.min_np = elastic.least(options.num_proc);
  policy.max_np = elastic.max_np;
  switch (elastic.on_failure) {
    case ElasticOptions::OnFailure::kReplace:
      policy.on_failure = membership::OnFailure::kReplace;
      break;
    case ElasticOptions::OnFailure::kShrink:
      policy.on_failure = membership::OnFailure::kShrink;
      break;
    case ElasticOptions::OnFailure::kBlacklist:
      policy.on_failure = membership::OnFailure::kBlacklist;
      break;
  }
  policy.on_join = elastic.on_join == ElasticOptions::OnJoin::kReady
                       ? membership::OnJoin::kReady
                       : membership::OnJoin::kAnnounce;
  policy.spares = elastic.spares;
  policy.elastic_timeout = membership::Seconds(config.elastic_timeout_seconds);
  policy.reset_limit = elastic.reset_limit;
  if (elastic.cooldown)
    policy.cooldown = {elastic.cooldown->min_seconds, elastic.cooldown->max_seconds};
  policy.seed = std::random_device()();
  return policy;
}

}  // namespace

ElasticPlan elastic_plan(const Options& options, const Config& config, const Standing& standing,
                         const std::vector<std::string>& environment) {
  ElasticPlan plan;
  plan.policy = policy_of(options, config);
  plan.own_names = standing.own_names;
  plan.own_names.push_back(host_name());
  if (const auto& slow = options.elastic.evict_slow)
    plan.evict_slow = {slow->factor, slow->seconds};
  if (!options.elastic.discovery_script.empty()) {
    DiscoveryPlan& script = plan.discovery.emplace();
    script.script = options.elastic.discovery_script;
    script.slots_per_host = options.elastic.slots_per_host;
    script.environment = environment;
    script.interval = std::chrono::duration<double>(config.discovery_interval_seconds);
    return plan;
  }
  plan.hosts = standing.hosts.hosts;
  if (plan.hosts.empty()) plan.hosts = {{host_name(), options.num_proc}};
  return plan;
}

std::vector<HostPlan> elastic_hosts(const Options& options, const ElasticPlan& plan) {
  std::vector<HostPlan> hosts;
  bool all_ours = options.token_file.empty();
  for (const HostSlots& host : plan.hosts) {
    const bool ours = is_ours(host.host, plan.own_names);
    all_ours = all_ours && ours;
    const auto known = std::ranges::find_if(
        hosts, [&](const HostPlan& one) { return one.host.host == host.host; });
    if (known == hosts.end())
      hosts.push_back({host, ours, {}});
    else
      known->host.slots += host.slots;
  }
  return all_ours ? std::vector<HostPlan>() : hosts;
}

int known_slots(const ElasticPlan& plan) {
  int slots = 0;
  for (const HostSlots& host : plan.hosts) slots += host.slots;
  return std::max(slots, plan.policy.start_np);
}

}  // namespace rueda::launcher

#include "launcher/job/rank_environment.h"

#include <algorithm>

namespace rueda::launcher {
namespace {

constexpr const char* kOurs[] = {
    "RUEDA_RANK",       "RUEDA_SIZE",   "RUEDA_LOCAL_RANK", "RUEDA_LOCAL_SIZE", "RUEDA_CROSS_RANK",
    "RUEDA_CROSS_SIZE", "RUEDA_JOB_ID", "RUEDA_AGENT_FD",   "RUEDA_KEY_FD",     "RUEDA_LIFE_FDS",
    "RUEDA_FLIGHT_FD",  "RUEDA_MEMBER", "RUEDA_ELASTIC"};
// Set for programs that know other launchers.
constexpr const char* kCompatible[] = {"RANK",
                                       "WORLD_SIZE",
                                       "LOCAL_RANK",
                                       "LOCAL_WORLD_SIZE",
                                       "MASTER_ADDR",
                                       "MASTER_PORT",
                                       "HOROVOD_RANK",
                                       "HOROVOD_SIZE",
                                       "HOROVOD_LOCAL_RANK",
                                       "HOROVOD_LOCAL_SIZE",
                                       "HOROVOD_CROSS_RANK",
                                       "HOROVOD_CROSS_SIZE",
                                       "HOROVOD_ELASTIC"};

using Environment = std::vector<std::string>;

Environment::const_iterator find_entry(const Environment& environment, const std::string& name) {
  return std::find_if(environment.begin(), environment.end(), [&](const std::string& entry) {
    return entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name);
  });
}

void remove(Environment* environment, const std::string& name) {
  for (auto it = find_entry(*environment, name); it != environment->end();
       it = find_entry(*environment, name)) {
    environment->erase(it);
  }
}

void set(Environment* environment, const std::string& name, const std::string& value) {
  remove(environment, name);
  environment->push_back(name + "=" + value);
}

void set_default(Environment* environment, const std::string& name, const std::string& value) {
  if (find_entry(*environment, name) == environment->end())
    environment->push_back(name + "=" + value);
}

}  // namespace

const char* find_variable(const Environment& environment, const std::string& name) {
  const auto it = find_entry(environment, name);
  return it == environment.end() ? nullptr : it->c_str() + name.size() + 1;
}

const char* non_empty(const GetEnv& get, const char* name) {
  const char* value = get(name);
  return value == nullptr || value[0] == '\0' ? nullptr : value;
}

void set_variable(Environment* environment, const std::string& name, const std::string& value) {
  set(environment, name, value);
}

Environment base_environment(const Environment& ours, const Options& options) {
  Environment base = ours;
  const bool nested = find_variable(base, "RUEDA_JOB_ID") != nullptr;
  for (const char* name : kOurs) remove(&base, name);
  if (nested) {
    for (const char* name : kCompatible) remove(&base, name);
  }
  for (const Setting& setting : options.settings) set(&base, setting.variable, setting.value);
  for (const auto& [name, value] : options.environment) set(&base, name, value);
  return base;
}

Environment rank_environment(const Environment& base, const JobEnvironment& job,
                             const MemberStart& start, int agent_fd) {
  Environment out = base;
  const RankPlace& place = start.place;
  const std::string rank = std::to_string(place.rank), size = std::to_string(place.size);
  const std::string local_rank = std::to_string(place.local_rank);
  const std::string local_size = std::to_string(place.local_size);
  const std::string cross_rank = std::to_string(place.cross_rank);
  const std::string cross_size = std::to_string(place.cross_size);

  set(&out, "RUEDA_RANK", rank);
  set(&out, "RUEDA_SIZE", size);
  set(&out, "RUEDA_LOCAL_RANK", local_rank);
  set(&out, "RUEDA_LOCAL_SIZE", local_size);
  set(&out, "RUEDA_CROSS_RANK", cross_rank);
  set(&out, "RUEDA_CROSS_SIZE", cross_size);
  set(&out, "RUEDA_MEMBER", std::to_string(start.member));
  set(&out, "RUEDA_JOB_ID", job.job_id);
  set(&out, "RUEDA_AGENT_FD", std::to_string(agent_fd));
  set(&out, "RUEDA_KEY_FD", std::to_string(job.key_fd));

  if (job.elastic) {
    set(&out, "RUEDA_ELASTIC", "1");
    set(&out, "HOROVOD_ELASTIC", "1");
    set(&out, "HOROVOD_HOSTNAME", start.host);
  }
  set(&out, "HOROVOD_RANK", rank);
  set(&out, "HOROVOD_SIZE", size);
  set(&out, "HOROVOD_LOCAL_RANK", local_rank);
  set(&out, "HOROVOD_LOCAL_SIZE", local_size);
  set(&out, "HOROVOD_CROSS_RANK", cross_rank);
  set(&out, "HOROVOD_CROSS_SIZE", cross_size);

  set_default(&out, "RANK", rank);
  set_default(&out, "WORLD_SIZE", size);
  set_default(&out, "LOCAL_RANK", local_rank);
  set_default(&out, "LOCAL_WORLD_SIZE", local_size);
  set_default(&out, "OMP_NUM_THREADS", std::to_string(job.threads));
  // Python buffers its output when it writes to a pipe; lines would come late or, after a crash,
  // never.
  set_default(&out, "PYTHONUNBUFFERED", "1");
  return out;
}

}  // namespace rueda::launcher

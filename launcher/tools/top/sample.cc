#include "launcher/tools/top/sample.h"

#include <yaml-cpp/yaml.h>

#include <exception>

namespace rueda::top {
namespace {

void read(const YAML::Node& node, const char* name, double* to) {
  if (const YAML::Node field = node[name]) *to = field.as<double>();
}

RankSample rank_of(const YAML::Node& node) {
  RankSample out;
  out.rank = node["rank"].as<Rank>();
  out.pid = static_cast<int>(node["pid"].as<double>());
  out.host = node["host"].as<std::string>();
  out.life = node["life"].as<std::string>();
  out.state = node["state"].as<std::string>();
  out.has_joined = static_cast<bool>(node["steps"]);
  if (const YAML::Node transport = node["transport"]) out.transport = transport.as<std::string>();
  const struct {
    const char* name;
    double* to;
  } numbers[] = {
      {"now", &out.now},
      {"steps", &out.steps},
      {"timed_steps", &out.timed_steps},
      {"step_seconds", &out.step_seconds},
      {"waiting_seconds", &out.waiting_seconds},
      {"late_seconds", &out.late_seconds},
      {"data_wait_seconds", &out.data_wait_seconds},
      {"bytes", &out.bytes},
      {"batches", &out.batches},
      {"planned_batches", &out.planned_batches},
      {"cpu_seconds", &out.cpu_seconds},
      {"delayed_seconds", &out.delayed_seconds},
      {"host_cpu_seconds", &out.host_cpu_seconds},
      {"resident_bytes", &out.resident_bytes},
      {"shared_memory_bytes", &out.shared_memory_bytes},
      {"pending", &out.pending},
      {"stalled", &out.stalled},
  };
  for (const auto& one : numbers) read(node, one.name, one.to);
  return out;
}

}  // namespace

// JSON is YAML.
Result<Sample> parse_sample(const std::string& answer) {
  try {
    const YAML::Node node = YAML::Load(answer);
    Sample out;
    out.job = node["job"].as<std::string>();
    out.command = node["command"].as<std::string>();
    out.health = node["health"].as<std::string>();
    out.size = static_cast<Rank>(node["size"].as<double>());
    read(node, "ranks_lost", &out.ranks_lost);
    for (const YAML::Node& rank : node["ranks"]) out.ranks.push_back(rank_of(rank));
    return out;
  } catch (const std::exception&) {
    return Status(Code::kDataLoss,
                  "the job's launcher answers what this rueda does not know: are "
                  "both of the same release?");
  }
}

}  // namespace rueda::top

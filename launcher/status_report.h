// What `rueda status` shows, as JSON and as text. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/flight_explain.h"

namespace rueda::launcher {

struct JobStatus {
  std::string job_id, command;
  int64_t now_ns = 0;
  std::vector<RankRecord> ranks;
};

std::string status_json(const JobStatus& job);
// One screen: a line per rank, who waits for whom. The same facts.
std::string status_text(const JobStatus& job);
// Text in quotes, with what JSON wants escaped.
std::string json_string(const std::string& text);

}  // namespace rueda::launcher

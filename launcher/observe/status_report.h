// What `rueda status` shows, as JSON and as text. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/observe/host_report.h"

namespace rueda::launcher {

struct HostStatus {
  std::string name, state;  // "running", "suspect", "leaving", "lost", ...
  int64_t silent_ms = 0;    // since its agent was last heard
  std::vector<Rank> ranks;
};

struct JobStatus {
  std::string job_id, command;
  int64_t now_ns = 0;
  std::vector<RankRecord> ranks;
  // Of a job over several hosts: these, and what their agents' last signs of life have counted.
  std::vector<HostStatus> hosts;
  std::vector<RankCounters> counters;
};

// Between JSON and text in the answer to `rueda status`.
inline constexpr char kStatusCut = '\x1e';

std::string status_json(const JobStatus& job);
// One screen: a line per rank, who waits for whom. The same facts.
std::string status_text(const JobStatus& job);
// The answer to `rueda drain`: how many ranks of those that run listen, and were asked.
std::string drain_answer(int asked, int ranks);
// To `rueda drain HOST`, whose question is kDrainHost and the host's name: what comes of it, or why
// not.
inline constexpr std::string_view kDrainHost = "drain ";
std::string drain_answer(const Result<std::string>& outlook);
struct HostDrained {
  bool done = false;
  std::string text;
};
std::optional<HostDrained> read_drain_answer(const std::string& answer);
const char* word_for(RankRecord::Life life);  // "running"
// Text in quotes, with what JSON wants escaped.
std::string json_string(const std::string& text);

}  // namespace rueda::launcher

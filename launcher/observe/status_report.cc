#include "launcher/observe/status_report.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "collectives/base/number_text.h"
#include "collectives/base/utf8.h"
#include "launcher/job/exit_report.h"

namespace rueda::launcher {
namespace {

uint64_t operations_of(const RankRecord& r) {
  return r.flight ? r.flight->submitted + r.flight->planned_tensors : 0;
}

int64_t age_ms(int64_t then, int64_t now) { return flight::elapsed_ns(then, now) / 1'000'000; }

// Ranks that have submitted fewer operations than half of them have, by a step at least.
std::vector<Rank> behind(const std::vector<RankRecord>& ranks) {
  std::vector<uint64_t> counts;
  for (const RankRecord& r : ranks) counts.push_back(operations_of(r));
  if (counts.size() < 2) return {};
  std::nth_element(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(counts.size() / 2),
                   counts.end());
  const uint64_t median = counts[counts.size() / 2];
  std::vector<Rank> out;
  for (const RankRecord& r : ranks) {
    if (operations_of(r) + 1 + median / 100 < median) out.push_back(r.rank);
  }
  return out;
}

// As the summary's: the rank that some other one has waited for longest, if that is worth a word.
struct Slowest {
  Rank rank = 0;
  int64_t waited_ms = 0;
  double share = 0;  // of the time since the one that waited has joined
};

std::optional<Slowest> slowest(const JobStatus& job) {
  constexpr double kToldShare = 0.01;
  Slowest most;
  for (const RankRecord& r : job.ranks) {
    if (!r.flight || r.flight->waited_ms <= most.waited_ms) continue;
    if (r.flight->waited_rank < 0 || r.flight->waited_rank >= r.flight->size) continue;  // damaged
    const double since = static_cast<double>(age_ms(r.flight->monotonic_ns, job.now_ns));
    most = {r.flight->waited_rank, r.flight->waited_ms,
            static_cast<double>(r.flight->waited_ms) / std::max(since, 1.0)};
  }
  if (most.share < kToldShare) return std::nullopt;
  return most;
}

// Of the process that is the rank, else of what was started for it; "-": unknown.
std::string pid_of(const RankRecord& r) {
  const int pid = r.flight ? r.flight->pid : r.pid;
  return pid > 0 ? std::to_string(pid) : "-";
}

std::string json_ranks(const std::vector<Rank>& ranks) {
  std::string text = "[";
  for (const Rank rank : ranks) {
    if (text.size() > 1) text += ',';
    text += std::to_string(rank);
  }
  return text + "]";
}

}  // namespace

const char* word_for(RankRecord::Life life) {
  switch (life) {
    case RankRecord::Life::kRunning: return "running";
    case RankRecord::Life::kSilent: return "silent";
    case RankRecord::Life::kDead: return "dead";
    case RankRecord::Life::kLeft: return "left";
  }
  return "";
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : clean_text(text, std::string::npos)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string drain_answer(int asked, int ranks) {
  return std::to_string(asked) + " " + std::to_string(ranks);
}

std::string drain_answer(const Result<std::string>& outlook) {
  return outlook.ok() ? "yes " + outlook.value() : "no " + outlook.status().message();
}

std::optional<HostDrained> read_drain_answer(const std::string& answer) {
  if (answer.starts_with("yes ")) return HostDrained{true, answer.substr(4)};
  if (answer.starts_with("no ")) return HostDrained{false, answer.substr(3)};
  return std::nullopt;
}

std::string status_json(const JobStatus& job) {
  std::string out = "{\"job\":" + json_string(job.job_id) +
                    ",\"command\":" + json_string(job.command) + ",\"ranks\":[";
  bool first = true;
  for (const RankRecord& r : job.ranks) {
    out += std::string(first ? "" : ",") + "\n {\"rank\":" + std::to_string(r.rank) +
           ",\"life\":" + json_string(word_for(r.life)) + ",\"state\":" + json_string(r.state) +
           ",\"operations\":" + std::to_string(operations_of(r));
    first = false;
    if (r.flight) {
      const flight::Snapshot& s = *r.flight;
      out += ",\"pid\":" + std::to_string(s.pid) + ",\"host\":" + json_string(s.host) +
             ",\"epoch\":" + std::to_string(s.epoch) +
             ",\"pending\":" + std::to_string(s.submitted - std::min(s.submitted, s.ended)) +
             ",\"planned_batches\":" + std::to_string(s.planned) +
             ",\"planned_tensors\":" + std::to_string(s.planned_tensors);
      if (const flight::Operation* last = s.last()) {
        out += ",\"last\":{\"name\":" + json_string(last->name) +
               ",\"what\":" + json_string(describe(*last)) +
               ",\"ended\":" + (last->ended() ? "true" : "false") +
               ",\"age_ms\":" + std::to_string(age_ms(last->submitted_ns, job.now_ns)) + "}";
      }
    }
    out += "}";
  }
  if (!job.hosts.empty()) {
    out += "],\n\"hosts\":[";
    first = true;
    for (const HostStatus& host : job.hosts) {
      out += std::string(first ? "" : ",") + "\n {\"name\":" + json_string(host.name) +
             ",\"state\":" + json_string(host.state) +
             ",\"silent_ms\":" + std::to_string(host.silent_ms) +
             ",\"ranks\":" + json_ranks(host.ranks) + "}";
      first = false;
    }
    out += "],\n\"counters\":[";
    first = true;
    for (const RankCounters& one : job.counters) {
      out += std::string(first ? "" : ",") + "\n {\"rank\":" + std::to_string(one.rank);
      for (const counters::ProgressRow& row : counters::kProgress)
        out += "," + json_string(row.name) + ":" + std::to_string(one.progress.*row.field);
      out += "}";
      first = false;
    }
  }
  out += "],\n\"behind\":" + json_ranks(behind(job.ranks)) + ",\n\"waits\":[";
  first = true;
  for (const Wait& wait : find_waits(job.ranks)) {
    out += std::string(first ? "" : ",") + "\n {\"name\":" + json_string(wait.operation.name) +
           ",\"what\":" + json_string(describe(wait.operation)) +
           ",\"process_set\":" + std::to_string(wait.operation.process_set) +
           ",\"in\":" + json_ranks(wait.in) + ",\"out\":" + json_ranks(wait.out) +
           ",\"age_ms\":" + std::to_string(age_ms(wait.since_ns, job.now_ns)) + "}";
    first = false;
  }
  out += "]";
  if (const auto slow = slowest(job)) {
    char text[96];
    std::snprintf(text, sizeof(text),
                  ",\n\"slowest\":{\"rank\":%d,\"waited_ms\":%lld,\"share\":%.3f}", slow->rank,
                  static_cast<long long>(slow->waited_ms), slow->share);
    out += text;
  }
  return out + "}\n";
}

std::string status_text(const JobStatus& job) {
  std::string out = "job " + job.job_id + ": " + counted(job.ranks.size(), "rank") + " of " +
                    printable_text(job.command) + "\n";
  for (const HostStatus& host : job.hosts) {
    out += "host " + printable_text(host.name) + ": " + host.state + ", " + name_ranks(host.ranks);
    if (host.silent_ms > 1000)
      out += ", silent for " + std::to_string(host.silent_ms / 1000) + " s";
    out += "\n";
  }
  const std::vector<Rank> slow = behind(job.ranks);
  for (const RankRecord& r : job.ranks) {
    char line[160];
    const std::string pid = pid_of(r);
    std::snprintf(line, sizeof(line), "rank %-4d pid %-8s %-8s %10llu operations", r.rank,
                  pid.c_str(), word_for(r.life), static_cast<unsigned long long>(operations_of(r)));
    out += line;
    if (std::find(slow.begin(), slow.end(), r.rank) != slow.end()) out += " (behind)";
    const flight::Operation* last = r.flight ? r.flight->last() : nullptr;
    if (last != nullptr) {
      std::snprintf(line, sizeof(line), ", %.1f s ago%s",
                    static_cast<double>(age_ms(last->submitted_ns, job.now_ns)) * 1e-3,
                    last->ended() ? "" : " and not ended");
      out += "; last " + describe(*last) + line;
    }
    if (!r.flight && r.life == RankRecord::Life::kRunning) out += "; has not called init";
    if (!r.state.empty()) out += "; " + printable_text(r.state);
    out += "\n";
  }
  for (const Wait& wait : find_waits(job.ranks)) {
    char age[32];
    std::snprintf(age, sizeof(age), "%.1f s",
                  static_cast<double>(age_ms(wait.since_ns, job.now_ns)) * 1e-3);
    out += "waiting for " + std::string(age) + ": " + describe(wait.operation) + ": " +
           name_ranks(wait.in) + " in";
    if (!wait.out.empty()) out += ", not in: " + name_ranks(wait.out);
    out += "\n";
  }
  if (const auto slowest_rank = slowest(job)) {
    char text[96];
    std::snprintf(text, sizeof(text),
                  "slowest: rank %d: others slept %.1f s until it came, %.0f %% of the time\n",
                  slowest_rank->rank, static_cast<double>(slowest_rank->waited_ms) * 1e-3,
                  100 * slowest_rank->share);
    out += text;
  }
  return out;
}

}  // namespace rueda::launcher

#include "launcher/observe/vitals_json.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "runtime/observe/stats/summary.h"

namespace rueda::launcher {
namespace {

constexpr size_t kToldOperations = 20;

std::string field(const char* name, double value) {
  char text[80];
  std::snprintf(text, sizeof(text), ",\"%s\":%.15g", name, value);
  return text;
}

double seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

std::string rank_json(const JobVitals& job, const RankVitals& rank) {
  std::string out =
      "{\"rank\":" + std::to_string(rank.rank) + ",\"host\":" + json_string(rank.host) +
      ",\"life\":" + json_string(word_for(rank.life)) + ",\"state\":" + json_string(rank.state) +
      field("pid", rank.pid) + field("now", seconds(rank.now_ns));
  out += field("cpu_seconds", seconds(rank.use.cpu_ns));
  out += field("delayed_seconds", seconds(rank.use.delayed_ns));
  out += field("host_cpu_seconds", seconds(rank.use.host_cpu_ns));
  out += field("resident_bytes", static_cast<double>(rank.use.resident_bytes));
  out += field("shared_memory_bytes", static_cast<double>(rank.use.shared_memory_bytes));
  out += field("late_seconds", job.late_seconds(rank.rank));
  if (!rank.flight) return out + "}";
  const stats::Numbers& numbers = rank.flight->stats;
  out += field("epoch", static_cast<double>(rank.flight->epoch));
  out += field("steps", static_cast<double>(numbers.steps));
  out += field("timed_steps", static_cast<double>(stats::count_of(numbers.step)));
  out += field("step_seconds", seconds(numbers.step.nanoseconds));
  out += field("step_seconds_p95", stats::quantile(numbers.step, 0.95));
  out += field("waiting_seconds", rank.waiting_seconds());
  out += field("data_wait_seconds", rank.data_wait_seconds());
  out += field("busy_seconds", seconds(numbers.busy_ns));
  out += field("bytes", stats::total_of(numbers.bytes));
  out += field("batches", stats::total_of(numbers.batches));
  out += field("planned_batches", static_cast<double>(numbers.planned_batches));
  out += field("pending", static_cast<double>(rank.pending()));
  out += field("stalled", static_cast<double>(rank.stalled));
  out += ",\"transport\":" + json_string(stats::transport_of(numbers));
  return out + "}";
}

}  // namespace

std::string vitals_json(const JobVitals& job) {
  std::string out = "{\"job\":" + json_string(job.job_id) +
                    ",\"command\":" + json_string(job.command) + field("size", job.size()) +
                    field("ranks_lost", static_cast<double>(job.ranks_lost)) +
                    ",\"health\":" + json_string(health_of(job)) + ",\"hosts\":[";
  for (size_t i = 0; i < job.hosts.size(); ++i) {
    out += std::string(i == 0 ? "" : ",") + "{\"name\":" + json_string(job.hosts[i].name) +
           ",\"state\":" + json_string(job.hosts[i].state) + "}";
  }
  out += "],\"ranks\":[";
  for (size_t i = 0; i < job.ranks.size(); ++i)
    out += (i == 0 ? "\n" : ",\n") + rank_json(job, job.ranks[i]);
  return out + "]}\n";
}

std::string rank_story(const RankRecord& record, int64_t now_ns) {
  std::string out = "rank " + std::to_string(record.rank) + ": " + word_for(record.life) +
                    (record.state.empty() ? "" : ", " + record.state) + "\n";
  if (record.flight) {
    out += "last operations, the newest first:\n";
    const auto& all = record.flight->operations;
    const size_t count = std::min(kToldOperations, all.size());
    for (size_t i = 0; i < count; ++i) {
      const flight::Operation& one = all[all.size() - 1 - i];
      char age[64];
      std::snprintf(age, sizeof(age), "%s, begun %.3f s ago", one.ended() ? "ended" : "under way",
                    seconds(flight::elapsed_ns(one.submitted_ns, now_ns)));
      out += "  " + describe(one) + ": " + age + "\n";
    }
  } else {
    out += "it has not called init yet\n";
  }
  if (!record.stacks.empty()) out += "stacks:\n" + record.stacks + "\n";
  return out;
}

std::optional<Rank> asked_rank(std::string_view question) {
  if (!question.starts_with(kRankQuestion)) return std::nullopt;
  question.remove_prefix(kRankQuestion.size());
  Rank rank = 0;
  const auto [end, error] =
      std::from_chars(question.data(), question.data() + question.size(), rank);
  if (error != std::errc() || end != question.data() + question.size() || rank < 0)
    return std::nullopt;
  return rank;
}

}  // namespace rueda::launcher

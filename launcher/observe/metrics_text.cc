#include "launcher/observe/metrics_text.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>

#include "collectives/base/utf8.h"
#include "runtime/observe/stats/summary.h"

namespace rueda::launcher {
namespace {

std::string label_text(const std::string& text) {
  std::string out;
  for (const char c : printable_text(text)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.15g", value);
  return text;
}

class Text {
 public:
  void family(const char* name, const char* type, const char* help) {
    out_ += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void sample(const std::string& name, const std::string& labels, double value) {
    out_ += name + (labels.empty() ? "" : "{" + labels + "}") + " " + number(value) + "\n";
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

std::string rank_label(Rank rank) { return "rank=\"" + std::to_string(rank) + "\""; }

// Bounds: 2^first nanoseconds, then each 2^step times the one before.
void histogram(Text* text, const std::string& name, Rank rank,
               const stats::Histogram<int64_t>& histogram, int first, int step, int bounds) {
  using stats::Buckets;
  size_t bucket = 0;
  int64_t below = 0;
  for (int i = 0; i < bounds; ++i) {
    const int64_t bound = int64_t{1} << (first + i * step);
    for (; bucket < Buckets::kCount && Buckets::begin(bucket + 1) <= bound; ++bucket)
      below += histogram.buckets[bucket];
    text->sample(name + "_bucket",
                 rank_label(rank) + ",le=\"" + number(static_cast<double>(bound) * 1e-9) + "\"",
                 static_cast<double>(below));
  }
  const auto count = static_cast<double>(stats::count_of(histogram));
  text->sample(name + "_bucket", rank_label(rank) + ",le=\"+Inf\"", count);
  text->sample(name + "_sum", rank_label(rank), static_cast<double>(histogram.nanoseconds) * 1e-9);
  text->sample(name + "_count", rank_label(rank), count);
}

constexpr CollectiveKind kNamed[] = {CollectiveKind::kAllreduce, CollectiveKind::kAllgather,
                                     CollectiveKind::kBroadcast, CollectiveKind::kReducescatter,
                                     CollectiveKind::kAlltoall,  CollectiveKind::kBarrier};

}  // namespace

std::string metrics_text(const JobVitals& job, const std::string& version) {
  Text text;
  std::set<std::string> transports;
  std::set<Rank> seen_late;
  for (const RankVitals& rank : job.ranks) {
    if (!rank.flight) continue;
    if (auto name = stats::transport_of(rank.flight->stats); !name.empty()) transports.insert(name);
    for (const stats::Late& late : stats::late_ranks(rank.flight->stats, {}))
      seen_late.insert(late.rank);
  }
  text.family("rueda_info", "gauge", "The job, 1.");
  text.sample("rueda_info",
              "job=\"" + label_text(job.job_id) + "\",version=\"" + label_text(version) +
                  "\",transport=\"" + (transports.empty() ? "" : *transports.rbegin()) + "\"",
              1);
  text.family("rueda_world_size", "gauge", "Ranks of the job.");
  text.sample("rueda_world_size", "", job.size());
  text.family("rueda_ranks_lost_total", "counter",
              "Ranks that have ended without leaving in order.");
  text.sample("rueda_ranks_lost_total", "", static_cast<double>(job.ranks_lost));

  using Value = std::function<double(const RankVitals&)>;
  const auto each = [&](const char* name, const char* type, const char* help, const Value& value) {
    text.family(name, type, help);
    for (const RankVitals& rank : job.ranks) {
      if (rank.flight) text.sample(name, rank_label(rank.rank), value(rank));
    }
  };
  text.family("rueda_rank_up", "gauge", "1: the rank runs.");
  for (const RankVitals& rank : job.ranks)
    text.sample("rueda_rank_up", rank_label(rank.rank),
                rank.life == RankRecord::Life::kRunning ? 1 : 0);
  std::map<std::string, double> on_host;
  for (const RankVitals& rank : job.ranks) ++on_host[rank.host];
  text.family("rueda_local_size", "gauge", "Ranks on the rank's host.");
  for (const RankVitals& rank : job.ranks)
    text.sample("rueda_local_size", rank_label(rank.rank), on_host[rank.host]);
  text.family("rueda_collective_seconds", "histogram",
              "Batches: from the start of each until its end on the rank.");
  for (const RankVitals& rank : job.ranks) {
    if (rank.flight)
      histogram(&text, "rueda_collective_seconds", rank.rank, rank.flight->stats.collective, 13, 3,
                7);
  }
  text.family("rueda_step_seconds", "histogram",
              "From the beginning of a step to that of the next.");
  for (const RankVitals& rank : job.ranks) {
    if (rank.flight)
      histogram(&text, "rueda_step_seconds", rank.rank, rank.flight->stats.step, 20, 2, 8);
  }
  each("rueda_bytes_total", "counter", "Bytes of collectives and messages that have ended.",
       [](const RankVitals& rank) { return stats::total_of(rank.flight->stats.bytes); });
  each("rueda_operations_total", "counter", "Collectives and messages that have ended.",
       [](const RankVitals& rank) { return stats::total_of(rank.flight->stats.operations); });
  text.family("rueda_batches_total", "counter",
              "Collectives that were run, of one tensor or several.");
  for (const RankVitals& rank : job.ranks) {
    if (!rank.flight) continue;
    double others = stats::total_of(rank.flight->stats.batches);
    for (const CollectiveKind kind : kNamed) {
      const auto count = static_cast<double>(rank.flight->stats.batches[static_cast<size_t>(kind)]);
      others -= count;
      text.sample("rueda_batches_total", rank_label(rank.rank) + ",kind=\"" + name_of(kind) + "\"",
                  count);
    }
    text.sample("rueda_batches_total", rank_label(rank.rank) + ",kind=\"other\"", others);
  }
  each("rueda_planned_batches_total", "counter", "Of these, those of a step plan.",
       [](const RankVitals& rank) {
         return static_cast<double>(rank.flight->stats.planned_batches);
       });
  each("rueda_busy_seconds_total", "counter", "A batch was under way.", [](const RankVitals& rank) {
    return static_cast<double>(rank.flight->stats.busy_ns) * 1e-9;
  });
  each("rueda_wait_seconds_total", "counter", "A thread of the program waited for an operation.",
       [](const RankVitals& rank) { return rank.waiting_seconds(); });
  each("rueda_data_wait_seconds_total", "counter", "The program waited for its next batch of data.",
       [](const RankVitals& rank) { return rank.data_wait_seconds(); });
  each("rueda_pending_operations", "gauge", "Submitted, and not ended.",
       [](const RankVitals& rank) { return static_cast<double>(rank.pending()); });
  each("rueda_stalled_operations", "gauge", "Waiting for longer than a stall's warning.",
       [](const RankVitals& rank) { return static_cast<double>(rank.stalled); });
  each("rueda_shared_memory_bytes", "gauge", "Shared memory that the process has in use.",
       [](const RankVitals& rank) { return static_cast<double>(rank.use.shared_memory_bytes); });
  text.family("rueda_late_seconds_total", "counter",
              "Ranks of this host have slept until that rank came, all together.");
  seen_late.erase(-1);
  for (const RankVitals& rank : job.ranks) seen_late.insert(rank.rank);
  for (const Rank rank : seen_late)
    text.sample("rueda_late_seconds_total", rank_label(rank), job.late_seconds(rank));
  return text.take();
}

}  // namespace rueda::launcher

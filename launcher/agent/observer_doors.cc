// Where a JobObserver tells what it sees: `rueda status`, `top` and `drain`, metrics, and the files
// of the flight recorders.
#include "collectives/base/version.h"
#include "collectives/host/event_fd.h"
#include "collectives/host/monotonic.h"
#include "launcher/agent/job_observer.h"
#include "launcher/observe/metrics_pages.h"
#include "launcher/observe/metrics_text.h"
#include "launcher/observe/status_report.h"
#include "launcher/observe/vitals_json.h"
#include "launcher/output/replace_file.h"

namespace rueda::launcher {
namespace {

constexpr std::chrono::seconds kWriteLimit{5};
constexpr std::chrono::seconds kWriteMetricsEvery{5};

}  // namespace

void JobObserver::serve_tools() {
  const auto now = std::chrono::steady_clock::now();
  std::string drained;
  std::vector<std::pair<int, std::string>> answers;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    drained = std::exchange(drain_answer_, "");
    answers.swap(host_answers_);
  }
  for (auto& [client, text] : answers) door_->answer(client, std::move(text));
  if (!drained.empty()) {
    for (const int client : std::exchange(drain_clients_, {})) door_->answer(client, drained);
  }
  for (const ToolDoor::Question& one : door_->work(now)) {
    if (one.text == "status") {
      door_->answer(one.client, status());
    } else if (one.text == kVitalsQuestion) {
      door_->answer(one.client, vitals_json(vitals()));
    } else if (const auto rank = asked_rank(one.text)) {
      std::string story = "there is no rank " + std::to_string(*rank) + "\n";
      for (const RankRecord& record : look({*rank})) {
        if (record.rank == *rank) story = rank_story(record, host::monotonic_ns());
      }
      door_->answer(one.client, std::move(story));
    } else if (one.text == "drain") {
      drain_clients_.push_back(one.client);
      const std::lock_guard<std::mutex> lock(mutex_);
      drain_wanted_ = true;
      host::ring_event_fd(event_.get());
    } else if (one.text.starts_with(kDrainHost)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      host_drains_.push_back({one.client, one.text.substr(kDrainHost.size())});
      host::ring_event_fd(event_.get());
    } else {
      door_->answer(one.client, "");
    }
  }
  door_->send_answers();
}

bool JobObserver::take_drain() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(drain_wanted_, false);
}

void JobObserver::drained(int asked, int ranks) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    drain_answer_ = drain_answer(asked, ranks);
  }
  host::ring_event_fd(wake_.get());
}

std::vector<JobObserver::HostDrain> JobObserver::take_host_drains() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(host_drains_, {});
}

void JobObserver::host_drained(int client, const Result<std::string>& outlook) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    host_answers_.emplace_back(client, drain_answer(outlook));
  }
  host::ring_event_fd(wake_.get());
}

void JobObserver::serve_metrics() {
  const auto questions = http_->work(std::chrono::steady_clock::now());
  if (!questions.empty()) {
    const JobVitals job = vitals();
    for (const HttpDoor::Question& one : questions) {
      const HttpPage page = metrics_page(one.path, job);
      http_->answer(one.client, page.code, page.type, page.body);
    }
  }
  http_->send_answers();
}

// For node_exporter, which reads a file as it is: it is replaced whole.
void JobObserver::write_metrics() {
  const auto now = std::chrono::steady_clock::now();
  if (now < metrics_due_ || !metrics_writer_.idle()) return;
  metrics_due_ = now + kWriteMetricsEvery;
  for (const std::string& problem : metrics_writer_.take_problems()) {
    if (std::exchange(metrics_problem_, problem) != problem) say({problem});
  }
  metrics_writer_.add([path = plan_.metrics_file, text = metrics_text(vitals(), version())] {
    const ByteView all = std::as_bytes(std::span(text));
    return replace_file(path, {&all, 1}, "metrics", 0644);
  });
}

std::string JobObserver::status() {
  const JobStatus job{plan_.job_id, plan_.command, host::monotonic_ns(), look({}), {}, {}};
  return status_json(job) + kStatusCut + status_text(job);
}

void JobObserver::request_dump() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    dump_wanted_ = true;
  }
  host::ring_event_fd(wake_.get());
}

std::string JobObserver::folder() const {
  return plan_.folder.empty() ? "rueda-flight-" + plan_.job_id : plan_.folder;
}

std::vector<std::string> JobObserver::write(const std::vector<RankRecord>& records) {
  const std::string hangs =
      "the folder '" + folder() + "' has not answered for " + std::to_string(kWriteLimit.count()) +
      " s: the flight recorders were not written (is it on a file server that "
      "is gone? --flight-recorder FOLDER names another)";
  if (!writer_.idle()) return {hangs};
  const int64_t now = host::monotonic_ns();
  const auto ranks = newest();
  for (const RankRecord& record : records) {
    const auto holder = ranks.find(record.rank);
    if (holder == ranks.end()) continue;  // it has left since it was looked at
    const ByteView memory = holder->second->memory.bytes();
    std::vector<std::byte> copy(memory.begin(), memory.end());
    writer_.add([folder = folder(), record, now, copy = std::move(copy)] {
      return write_flight_file(folder, record, copy, now);
    });
  }
  const bool written = writer_.wait(kWriteLimit);
  writer_.forget();
  const std::vector<std::string> problems = writer_.take_problems();
  if (!problems.empty()) return {problems.front()};
  if (!written) return {hangs};
  return {"the flight recorders are in '" + folder() + "': rueda explain " + folder()};
}

void JobObserver::dump() {
  std::vector<Rank> all;
  for (const auto& [rank, watched] : newest()) all.push_back(rank);
  say(write(look(all)));
}

std::vector<std::string> JobObserver::write_files() { return write(look({})); }

}  // namespace rueda::launcher

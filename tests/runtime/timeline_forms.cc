// One and the same workload as a timeline in each form, for tests/python/test_perfetto.py and
// docs/benchmarks.md:
//
//   timeline_forms FOLDER RANK STEPS [ROUNDS]
//
// writes FOLDER/RANK.json, .pftrace and .pftrace.gz and says, a line each: the file's name, its
// bytes, and the processor time in seconds for layout and file, the least of ROUNDS in turns.
#include <ctime>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "runtime/observe/timeline/event_file.h"
#include "runtime/observe/timeline/layout.h"
#include "tests/runtime/hostile_names.h"

using namespace rueda;
using timeline::Event;
using timeline::Nanos;

namespace {

constexpr Nanos kStart = 5'000'000'000'000;  // a machine that has been up for more than an hour
constexpr Nanos kStep = 20'000'000;
constexpr int kLayers = 40;
constexpr size_t kPass = 2000;  // events that a writer finds in the ring at once, at most

double processor_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Workload {
 public:
  explicit Workload(timeline::Labels* labels) : labels_(labels) {}

  std::vector<Event> of(int steps) {
    for (int step = 0; step < steps; ++step) add_step(step, kStart + 1'000'000 + step * kStep);
    for (const std::string& name : testing::kHostile) {
      add_mark(name, timeline::Mark::kInstant, kStart + steps * kStep + 2'000'000);
      add_batch(labels_->of_tensor("allreduce." + name, DType::kInt64, {2}, 1), 16, {0, 7, 1},
                kStart + steps * kStep + 3'000'000);
    }
    add_mark("never ends", timeline::Mark::kBegin, kStart + steps * kStep + 4'000'000);
    return std::move(events_);
  }

 private:
  void add_step(int step, Nanos at) {
    Event cycle;
    cycle.time = at;
    events_.push_back(cycle);
    add_mark("backward", timeline::Mark::kBegin, at);
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      const std::string name = "allreduce.layers." + std::to_string(layer) + ".linear.weight";
      const auto generation = static_cast<uint64_t>(step < 5 ? 0 : 1);
      const auto number = static_cast<uint64_t>(step * kLayers + (kLayers - 1 - layer));
      add_batch(labels_->of_tensor(name, DType::kFloat32, {64, 64}), 64 * 64 * 4,
                {generation, number, 0}, at + (kLayers - layer) * 237'119);
    }
    add_mark("backward", timeline::Mark::kEnd, at + 11'000'000);
    add_mark("optimizer step", timeline::Mark::kBegin, at + 13'000'123);
    add_mark("optimizer step", timeline::Mark::kEnd, at + 14'000'456);
  }

  // One tensor that is submitted at this time; a few are under way at once.
  void add_batch(timeline::LabelId label, int64_t bytes, timeline::BatchNumber number, Nanos at) {
    Event batch;
    batch.what = Event::What::kBatch;
    batch.members = 1;
    batch.batch = {number, CollectiveKind::kAllreduce, bytes, at + 31'234, {}, at + 731'111};
    batch.batch.stages = {at + 41'000,
                          {at + 43'001, at + 123'456},
                          {at + 103'789, at + 623'400},
                          {at + 501'010, at + 730'019}};
    events_.push_back(batch);
    Event member;
    member.what = Event::What::kMember;
    member.label = label;
    member.member = {at, at + 9'876, bytes};
    events_.push_back(member);
  }

  void add_mark(const std::string& name, timeline::Mark what, Nanos at) {
    Event mark;
    mark.what = Event::What::kMark;
    mark.label = labels_->of_mark(name);
    mark.mark = what;
    mark.time = at;
    events_.push_back(mark);
  }

  timeline::Labels* labels_;
  std::vector<Event> events_;
};

// As timeline::Writer does it, without its thread.
double write(const std::string& path, Rank rank, int steps, const std::vector<Event>& events,
             const timeline::Labels& labels) {
  const timeline::Origin origin{rank,
                                "rank " + std::to_string(rank) + " (pid 4711 on \"node\")",
                                kStart,
                                1'700'000'000'000'000,
                                rank * 5'000'123,
                                rank * 250};
  const double begin = processor_seconds();
  const auto layout = timeline::tracks_layout(&labels, origin, timeline::form_of(path));
  const auto file =
      std::move(timeline::create_event_file({path, true, timeline::form_of(path)})).value();
  std::string text;
  bool good = true;
  const auto append = [&] {
    layout->flush(&text);
    good = good && file->append(text).ok();
    text.clear();
  };
  layout->open(&text);
  size_t pass = 0;
  for (const Event& event : events) {
    layout->add(event, &text);
    if (++pass % kPass == 0 || text.size() >= 64 << 10) append();
  }
  const Nanos end = kStart + (steps + 1) * kStep;
  layout->lost(3, end, &text);
  layout->close(end, &text);
  append();
  if (!good || !file->end().ok()) std::exit(1);
  return processor_seconds() - begin;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  const std::string stem = std::string(arguments[1]) + "/" + arguments[2];
  const Rank rank = std::atoi(arguments[2]);
  const int steps = std::atoi(arguments[3]);
  const int rounds = count > 4 ? std::atoi(arguments[4]) : 1;
  timeline::Labels labels;
  const std::vector<Event> events = Workload(&labels).of(steps);
  const std::array<std::string, 3> paths = {stem + ".json", stem + ".pftrace",
                                            stem + ".pftrace.gz"};
  std::array<double, 3> least;
  least.fill(std::numeric_limits<double>::max());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < paths.size(); ++i)
      least[i] = std::min(least[i], write(paths[i], rank, steps, events, labels));
  }
  for (size_t i = 0; i < paths.size(); ++i) {
    std::printf("%s %ju %.6f\n", std::filesystem::path(paths[i]).filename().c_str(),
                static_cast<uintmax_t>(std::filesystem::file_size(paths[i])), least[i]);
  }
  return 0;
}

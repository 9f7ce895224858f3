// JobObserver: looks at the ranks of this host from outside: explains hangs, answers `rueda status`,
// writes the flight recorders to files.
//
// It holds each rank's flight recorder and reads it once a second while anything is under way; no rank
// is woken for that, and none has to be able to answer. One thread of its own, because collecting
// stacks takes a while and the agent may not wait.
//
// Ownership: memory, socket and thread. Threads: every member from one thread (the agent's).
// End:       stop() or the destructor joins the thread.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/base/unique_fd.h"
#include "launcher/recorder_files.h"

namespace rueda::launcher {

struct ObserverPlan {
  std::string job_id;
  std::string command;        // for people
  std::vector<Rank> ranks;    // of this host
  double stall_seconds = 60;  // 0: hangs are not explained
  bool dump_stalls = false;   // RUEDA_STALL_POLICY is dump or abort
  std::string folder;         // for files; "": rueda-flight-<job> where one has to be written
};

class JobObserver {
 public:
  static Result<std::unique_ptr<JobObserver>> start(ObserverPlan plan);
  ~JobObserver();
  JobObserver(const JobObserver&) = delete;
  JobObserver& operator=(const JobObserver&) = delete;

  // Memory of this rank's recorder, for its process to inherit.
  int memory_fd(Rank rank) const;
  void rank_started(Rank rank, pid_t pid);
  void rank_ended(Rank rank, bool well, const std::string& how);
  // A folder for the files was asked for.
  bool has_folder() const { return !plan_.folder.empty(); }
  // Readable when there are lines to print.
  int event_fd() const { return event_.get(); }
  std::vector<std::string> take_lines();
  // Somebody asks for the files, with stacks; says so when they are written.
  void request_dump();
  // The files as of now, without stacks of the dead. What the user should know, a line each.
  std::vector<std::string> write_files();
  void stop();

 private:
  struct Watched {
    explicit Watched(FlightMemory m) : memory(std::move(m)) {}
    FlightMemory memory;
    pid_t pid = -1;
    bool running = false, well = false;
    std::string how;
    std::string stacks;  // when they were last asked for
  };
  explicit JobObserver(ObserverPlan plan) : plan_(std::move(plan)) {}

  void run();
  // Ranks with their states; stacks of those that are named.
  std::vector<RankRecord> look(const std::vector<Rank>& stacks_of);
  void look_for_stalls();
  std::vector<std::string> write(const std::vector<RankRecord>& records);
  void dump();
  void answer();
  void say(std::vector<std::string> lines);
  std::string folder() const;

  const ObserverPlan plan_;
  std::map<Rank, std::unique_ptr<Watched>> ranks_;  // set up before the thread runs; then under mutex_
  UniqueFd event_;    // to the agent
  UniqueFd wake_;     // to the thread
  UniqueFd status_;   // listens
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
  bool stopping_ = false, dump_wanted_ = false;
  std::map<std::string, double> told_;  // waits that were explained, by set and name: next time at
  std::thread thread_;
};

}  // namespace rueda::launcher

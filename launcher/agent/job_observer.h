// JobObserver: looks at the ranks of this host from outside: explains hangs, answers `rueda status`
// and `rueda top`, serves metrics, writes the flight recorders to files.
//
// It holds each rank's flight recorder and reads it once a second while anything is under way; no
// rank is woken for that, and none has to be able to answer. One thread of its own, because
// collecting stacks takes a while and the agent may not wait.
//
// In a job over several hosts it answers the controller's questions, who explains for all (reports,
// mail, counters); here it then only listens for `rueda status` about this host.
//
// Ownership: memory, socket and thread. Threads: every member from one thread (the agent's).
// End:       stop() or the destructor joins the thread.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/base/unique_fd.h"
#include "launcher/job/member.h"
#include "launcher/observe/host_report.h"
#include "launcher/observe/http_door.h"
#include "launcher/observe/recorder_files.h"
#include "launcher/observe/stall_story.h"
#include "launcher/observe/stall_watch.h"
#include "launcher/observe/status_socket.h"
#include "launcher/observe/vitals.h"
#include "launcher/output/file_writer.h"

namespace rueda::launcher {

struct ObserverPlan {
  std::string job_id;
  std::string command;        // for people
  size_t ranks = 0;           // of this host, to begin with
  double stall_seconds = 60;  // 0: hangs are not explained here
  double stalled_after = 60;  // seconds; what waits longer counts as stalled in vitals
  bool counts = false;        // counters() are wanted
  bool dump_stalls = false;   // RUEDA_STALL_POLICY is dump or abort
  std::string folder;         // for files; "": rueda-flight-<job> where one has to be written
  std::optional<HttpAddress> metrics;  // where metrics of this host are served
  std::string metrics_file;            // and the file that they are written to; "": none
};

class JobObserver {
 public:
  // An error: nobody can listen where metrics are wanted, or there is no thread.
  static Result<std::unique_ptr<JobObserver>> start(ObserverPlan plan);
  ~JobObserver();
  JobObserver(const JobObserver&) = delete;
  JobObserver& operator=(const JobObserver&) = delete;

  // Before its process is started: memory of its recorder, for it to inherit. Where a rank has had
  // several members, the newest is looked at.
  Result<int> add(MemberId member, Rank rank);
  void rank_started(MemberId member, pid_t pid);
  // Members of an epoch are looked at before all others that had, or expect, their ranks.
  void begin_epoch(const std::map<MemberId, Rank>& ranks);
  void rank_ended(MemberId member, bool well, const std::string& how);
  // It could not be started.
  void forget(MemberId member);
  // A folder for the files was asked for.
  // "http://127.0.0.1:9400"; "": no metrics are served.
  std::string metrics_url() const { return http_ ? http_->url() : ""; }
  bool has_folder() const { return !plan_.folder.empty(); }
  // Readable when there are lines to print, or reports.
  int event_fd() const { return event_.get(); }
  std::vector<std::string> take_lines();
  // A question of the controller, answered by a report: soon, or at once after stop().
  void request_report(HostQuestion question);
  std::vector<HostReport> take_reports();
  // As of the last second.
  std::vector<RankCounters> counters() const;
  // Whether somebody has asked for a drain (`rueda drain`) since the last call; to be answered with
  // drained(): how many ranks of those that run were asked.
  bool take_drain();
  void drained(int asked, int ranks);
  // Who has asked for a host to be drained (`rueda drain HOST`); each is to be answered.
  struct HostDrain {
    int client = 0;
    std::string host;
  };
  std::vector<HostDrain> take_host_drains();
  void host_drained(int client, const Result<std::string>& outlook);
  // What this one is to say about a wait, in its error.
  void mail(MemberId member, const std::string& text);
  // Somebody asks for the files, with stacks; says so when they are written.
  void request_dump();
  // The files as of now, without stacks of the dead. What the user should know, a line each. A
  // folder that does not answer is waited for for a few seconds.
  std::vector<std::string> write_files();
  void stop();

 private:
  struct Watched {
    explicit Watched(FlightMemory m) : memory(std::move(m)) {}
    FlightMemory memory;
    MemberId member = 0;
    Rank rank = 0;
    pid_t pid = -1;
    bool running = false, well = false, in_epoch = false;
    std::string how;
    std::string stacks;  // when they were last asked for
  };
  explicit JobObserver(ObserverPlan plan) : plan_(std::move(plan)), stalls_(plan_.stall_seconds) {}

  void run();
  std::map<Rank, std::shared_ptr<Watched>> newest() const;  // by rank
  void forget_ended();                                      // with mutex_
  // Ranks with their states; stacks of those that are named.
  std::vector<RankRecord> look(const std::vector<Rank>& stacks_of, bool with_operations = true);
  HostReport report(const HostQuestion& question);
  void count();
  void look_for_stalls();
  std::vector<std::string> write(const std::vector<RankRecord>& records);
  void dump();
  void serve_tools();
  std::string status();
  JobVitals vitals();
  uint64_t stalled(const Watched& watched) const;
  void serve_metrics();
  void write_metrics();
  void say(std::vector<std::string> lines);
  std::string folder() const;

  const ObserverPlan plan_;
  UniqueFd event_;                  // to the agent
  UniqueFd wake_;                   // to the thread
  std::unique_ptr<ToolDoor> door_;  // null: could not be opened
  std::unique_ptr<HttpDoor> http_;  // null: no metrics are served
  mutable std::mutex mutex_;
  std::map<MemberId, std::shared_ptr<Watched>> members_;  // shared while the thread looks
  std::vector<std::string> lines_;
  bool stopping_ = false, dump_wanted_ = false;
  bool drain_wanted_ = false;
  uint64_t ranks_lost_ = 0;
  std::string drain_answer_;
  std::vector<HostDrain> host_drains_;
  std::vector<std::pair<int, std::string>> host_answers_;
  std::vector<HostQuestion> questions_;
  std::vector<HostReport> reports_;
  std::vector<RankCounters> counters_;
  StallWatch stalls_;               // the thread's
  StallStory story_;                // likewise
  std::vector<int> drain_clients_;  // likewise
  FileWriter writer_;               // likewise; the agent's after stop()
  FileWriter metrics_writer_;       // likewise
  std::chrono::steady_clock::time_point metrics_due_{};
  std::string metrics_problem_;  // told last
  std::thread thread_;
};

}  // namespace rueda::launcher

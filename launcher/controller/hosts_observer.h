// HostsObserver: what all ranks of a job over several hosts do, as the controller asks their
// agents.
//
// Explains hangs (who of which host waits for whom), answers `rueda status` and `rueda drain`, and
// writes the flight recorders of all ranks into one folder. One question to all hosts is a round;
// there is one round at a time, and a host that does not answer in time is told as such.
//
//   counters in heartbeats ──a wait is old──> look ──is due──> explain, with stacks ──> lines, mail
//   `rueda status` ──────────────────────────> look ──> answer
//   SIGUSR2, policy dump, a failed job's end ─> whole ──> files
//
// Owns:    the tools' socket. Borrows what Link calls. One thread: the controller's.
// Trust:   agents have proved who they are; what they send is checked all the same, and a host
//          speaks for its own ranks only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/hosts/wire.h"
#include "launcher/observe/host_report.h"
#include "launcher/observe/http_door.h"
#include "launcher/observe/stall_story.h"
#include "launcher/observe/stall_watch.h"
#include "launcher/observe/status_report.h"
#include "launcher/observe/status_socket.h"
#include "launcher/observe/vitals.h"
#include "launcher/output/file_writer.h"

namespace rueda::launcher {

class HostsObserver {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Setup {
    std::string job_id, command;
    size_t ranks = 0;           // to begin with
    double stall_seconds = 60;  // 0: hangs are not explained
    bool dump_stalls = false;   // RUEDA_STALL_POLICY is dump or abort
    std::string folder;         // for files; "": rueda-flight-<job> where some have to be written
    std::optional<HttpAddress> metrics = {};  // where those of all hosts are served
  };
  struct Link {
    std::function<void(int host, control::ControllerMessage)> send;
    std::function<bool(int host)> can_be_asked;
    std::function<std::vector<HostStatus>()> hosts;
    // `rueda drain HOST`: what comes of it, or why it is not drained.
    std::function<Result<std::string>(const std::string& host)> drain_host = {};
    // Whether that outlives this controller: who has asked is answered then. Null: it need not.
    std::function<bool()> drains_are_kept = {};
  };
  HostsObserver(Setup setup, Link link);
  // Serves metrics, if that was asked for; an error when nobody can listen there. Gives the URL.
  Result<std::string> open_metrics();

  void add_to_poll(std::vector<pollfd>* fds) const;
  // A process of the job, and the rank that it has, or can expect.
  void add_member(int host, MemberId member, Rank rank);
  // Whose number is which from now on; who has ended and is none of these is forgotten.
  void begin_epoch(const std::map<MemberId, Rank>& ranks);
  void member_ended(MemberId member, bool well = true);
  // There is no process.
  void forget_member(MemberId member);
  // From an agent.
  void take(int host, control::Observed message);
  void take(int host, const control::Heartbeat& message);
  void take(int host, const control::Drained& message);
  // Nothing more comes from there.
  void host_gone(int host);
  // What a member's host has counted last; nothing before it has counted.
  std::optional<RankCounters> counters_of(MemberId member) const;

  // What is due. Returns lines for the user.
  std::vector<std::string> work(TimePoint now);

  bool has_folder() const { return !setup_.folder.empty(); }
  // Files of all ranks, with stacks; of those that live only.
  void request_dump(bool stacks);
  bool busy() const { return round_ || dump_wanted_; }

 private:
  enum class Purpose { kLook, kExplain, kWhole, kVitals };
  struct Round {
    Purpose purpose = Purpose::kLook;
    uint64_t number = 0;
    std::set<int> awaited;  // hosts
    TimePoint until;
    std::vector<int> clients;  // of `rueda status`, `rueda top`
    std::vector<HttpDoor::Question> scrapes;
    std::map<Rank, RankVitals> vitals;
    std::optional<Rank> told;  // whose story is asked for
    std::map<Rank, RankRecord> records;
    std::map<Rank, MemberId> members;  // whose these are
    StallWatch::Due due;               // of kExplain
    std::vector<std::string> problems;
    bool folder_hangs = false;  // what it was to write is dropped
    std::optional<TimePoint> written_until;
  };
  struct DrainRound {
    std::set<int> awaited;
    TimePoint until;
    std::vector<int> clients;
    int asked = 0, ranks = 0;
  };

  void open_door(TimePoint now);
  void take_question(const ToolDoor::Question& question, TimePoint now);
  void begin_next(TimePoint now);
  void begin(Round round, Detail detail, const std::set<Rank>& stacks_of, TimePoint now);
  void end_round(TimePoint now, std::vector<std::string>* lines);
  void explain(const Round& round, const std::vector<RankRecord>& records,
               std::vector<std::string>* lines);
  void end_drain();
  void take_view(int host, control::Observed* message);
  // What is said of ranks that this host has told nothing of.
  std::pair<RankRecord::Life, std::string> silence_of(int host, const std::string& name) const;
  std::vector<RankRecord> all_records(Round* round) const;
  JobVitals vitals_of(Round* round) const;
  JobStatus status_of(std::vector<RankRecord> records) const;
  bool is_written(TimePoint now);
  bool something_waits() const;
  std::set<int> askable() const;
  std::set<Rank> all_ranks() const;
  int host_of(Rank rank) const;
  struct Known {
    int host = 0;
    Rank rank = 0;
    bool in_epoch = false, ended = false;
  };
  // Null: that host has none such.
  const Known* known(int host, MemberId member) const;
  void number(MemberId member, const Known& known);
  std::string folder() const;

  const Setup setup_;
  const Link link_;
  // Null: it could not be opened yet. What the last controller was about to start may hold it.
  std::unique_ptr<ToolDoor> door_;
  TimePoint open_again_at_{};
  std::unique_ptr<HttpDoor> http_;  // null: metrics are not served here
  std::vector<int> vitals_wanted_;
  std::vector<HttpDoor::Question> scrapes_wanted_;
  std::vector<std::pair<int, Rank>> stories_wanted_;
  uint64_t ranks_lost_ = 0;
  StallWatch stalls_;
  StallStory story_;
  std::map<MemberId, Known> members_;
  std::map<Rank, MemberId> holders_;  // one of an epoch before all others of this number
  std::map<MemberId, RankCounters> counters_;
  std::map<int, int64_t> shift_ns_;  // by host: how far our clock is ahead of its
  std::set<int> gone_;
  uint64_t last_number_ = 0;
  std::optional<Round> round_;
  std::optional<DrainRound> drain_;
  std::vector<std::pair<int, std::string>> drained_;  // clients of `rueda drain HOST`, and answers
  std::optional<StallWatch::Due> explain_wanted_;
  std::optional<std::set<Rank>> dump_wanted_;  // with stacks of these
  std::vector<int> status_wanted_;             // clients
  TimePoint next_look_{};
  FileWriter writer_;
};

}  // namespace rueda::launcher

// JobBooks: what a controller keeps of a job, over however many hosts: the store that the ranks
// meet at, the console, copies of the output, the ranks' ends and the first verdict; and at the end
// the last lines and the exit code.
//
// Owns: the store and its thread, the files. Borrows its plan. One thread.
#pragma once

#include <poll.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/command/options.h"
#include "launcher/controller/elastic_members.h"
#include "launcher/job/exit_report.h"
#include "launcher/job/fixed_epochs.h"
#include "launcher/job/timeline_files.h"
#include "launcher/output/console.h"
#include "launcher/output/output_copies.h"
#include "launcher/output/rank_output.h"
#include "runtime/observe/life/life_page.h"
#include "runtime/rendezvous/store_server.h"

namespace rueda::launcher {

struct BooksPlan {
  Options options;
  std::vector<std::string> base_environment;  // of the ranks
  TimelineFiles timeline;
  bool summary = false;
  std::optional<ElasticPlan> elastic = {};  // nothing: a job of fixed size
};

// Of a wait at the end: whether somebody still wants the job's end, and what wakes the wait when
// that may have changed.
struct Patience {
  std::function<bool()> is_wanted;
  std::function<void(std::vector<pollfd>*)> add_to_poll;
};

class JobBooks {
 public:
  explicit JobBooks(const BooksPlan& plan);

  // Of an elastic job: ElasticMembers::Doors.
  struct ElasticDoors {
    std::function<void(const std::string& host, const Order&)> tell;
    std::function<ReadyHosts(const std::vector<HostSlots>& found)> ready_hosts;
    std::function<std::string(const std::string& host)> address_of;
    std::function<void(const std::string& record)> keep = {};
    std::optional<rendezvous::StoreJournal::Files> journal = {};  // of the store
    bool takes_over = false;  // another controller was here before
  };
  // The store, the files. Before the first rank.
  Status open(ElasticDoors doors);
  // Who decides who is in the job; null in one of fixed size.
  ElasticMembers* elastic() const { return elastic_.get(); }
  // `rueda drain HOST`: ElasticMembers::drain().
  Result<std::string> drain_host(const std::string& host);
  // Serves the member's connection to the store. host: where it is, as the job names it.
  Status attach(UniqueFd connection, MemberId member, const std::string& host);
  // Whose lines are printed with this rank in front.
  RankOutput* output_of(MemberId member, Rank rank);

  void say(const std::string& text) { console_.say(text); }
  void narrate(const std::string& text) {
    if (plan_.options.verbose) say(text);
  }
  bool on_terminal() const { return console_.on_terminal(); }
  // The user, or the files, take less than the ranks write: read no more from them for now.
  bool congested() const { return console_.congested() || (copies_ && copies_->congested()); }
  bool stdout_closed() const { return console_.stdout_closed(); }
  void add_to_poll(std::vector<pollfd>* fds) const;
  std::optional<LineFolder::TimePoint> next_deadline() const;
  // Prints what there is room for, and decides and answers who asks to enter an epoch.
  void work();

  // The one place where the end of a rank, however it was learnt, becomes known to all others.
  // `text` is what they are told. False: it was known.
  bool rank_ended(RankEnd end, const std::string& text);
  bool has_ended(MemberId member) const { return ended_.contains(member); }
  bool any_failed() const;
  // The one place where a loss becomes known to the job. The first verdict stands; a newer one
  // about the same rank says more of its cause. Both go to every host by `tell`, before the store
  // ends the others' waits. Returns whether it is the first.
  bool rank_lost(const life::LostRank& lost, const std::function<void()>& tell);
  const std::optional<life::LostRank>& lost() const { return lost_; }

  // What is known of the job's end. Who judges adds what he knows himself.
  JobEnd end() const;
  // No rank writes any more: what they have written is on its way to the console and in the files.
  void close_outputs(const Patience& patience);
  // Everything is told, and nobody is served any more.
  void close_store();
  // The last lines; returns the exit code.
  int conclude(JobEnd job, const Patience& patience);
  // Our reader may be slow or stopped; who no longer wants the end ends the wait for it.
  void drain_console(const Patience& patience);

 private:
  Rank rank_of(MemberId member) const;
  void forget_outputs(const std::map<MemberId, Rank>& ranks);
  JobEnd elastic_end() const;

  const BooksPlan& plan_;
  Console console_;
  std::unique_ptr<OutputCopies> copies_;  // null: none
  std::unique_ptr<rendezvous::StoreServer> store_;
  FixedEpochs epochs_;                       // of a job of fixed size
  std::unique_ptr<ElasticMembers> elastic_;  // of another
  struct Output {
    Rank rank = 0;
    std::unique_ptr<RankOutput> lines;
  };
  std::map<MemberId, Output> outputs_;
  std::vector<RankEnd> ends_;
  std::set<MemberId> ended_, first_failed_;
  std::optional<life::LostRank> lost_;  // the first of a job of fixed size
};

}  // namespace rueda::launcher

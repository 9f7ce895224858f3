// The controller of a job on one host: in its agent's process, on its agent's thread. No messages,
// no port: what the agent tells goes into the job's books at once.
#pragma once

#include <string>
#include <vector>

#include "launcher/controller/job_books.h"
#include "launcher/hosts/controller_client.h"
#include "launcher/hosts/machine.h"

namespace rueda::launcher {

class LocalController : public ControllerClient {
 public:
  // `first_line`: what a person at a terminal likes to see before the first line of the ranks.
  // `plan`: borrowed.
  LocalController(const BooksPlan& plan, std::string first_line)
      : books_(plan), first_line_(std::move(first_line)) {}

  void serve(ControlledHost* host) override { host_ = host; }
  Status open() override;
  void failed(const std::string& why) override;
  Status attach(UniqueFd agent_end, MemberId member) override {
    return books_.attach(std::move(agent_end), member, host_name());
  }
  OutputTaker* output_of(MemberId member, Rank rank) override {
    return books_.output_of(member, rank);
  }
  bool congested() const override { return books_.congested(); }
  void add_to_poll(std::vector<pollfd>* fds) const override { books_.add_to_poll(fds); }
  int poll_limit_ms() const override;
  void work() override;
  void rank_started(const MemberStart& start, pid_t pid, const std::string& error) override;
  void rank_ended(const RankEnd& end) override { books_.rank_ended(end, describe_end(end)); }
  void rank_lost(const life::LostRank& lost) override;
  void rank_fenced(MemberId member) override {
    if (ElasticMembers* const members = books_.elastic()) members->fenced(member);
  }
  void child_ended(pid_t pid, int wait_status) override {
    if (ElasticMembers* const members = books_.elastic()) members->child_ended(pid, wait_status);
  }
  void say(const std::string& text) override { books_.say(text); }
  // Not asked for: the agent sees all ranks, and explains by itself (AgentPlan::explains).
  void report(HostReport) override {}
  void drained(int, int) override {}
  void count(const std::vector<RankCounters>& counters) override {
    if (books_.elastic() == nullptr) return;
    for (const RankCounters& one : counters) books_.elastic()->counted(one);
  }
  Result<std::string> drain_host(const std::string& host) override;
  void leaves(const std::string&) override {}  // the job goes with it
  void finish() override;
  bool controller_was_lost() const override { return false; }

  // ruedarun's, after finish().
  int exit_code() const { return exit_code_; }

 private:
  JobBooks books_;
  const std::string first_line_;
  ControlledHost* host_ = nullptr;
  bool failed_ = false, closed_told_ = false;
  int exit_code_ = 0;
};

}  // namespace rueda::launcher

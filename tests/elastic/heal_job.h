// A job that changes, with real processes (heal_program.c), the real store and decider, and between
// them a controller that is as short as can be.
//
// The test tells each member what to do and waits for its answer; meanwhile deaths are noticed and
// entries answered. Nothing sleeps to be in time.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launcher/agent/life_watch.h"
#include "launcher/membership/membership.h"
#include "runtime/rendezvous/job_key.h"
#include "runtime/rendezvous/store_server.h"

namespace rueda::testing {

class HealJob {
 public:
  // in_shells: ranks are started by shells that outlive them.
  HealJob(launcher::membership::Policy policy, int slots, bool in_shells = false);
  ~HealJob();

  void tell(launcher::MemberId member, char what);
  // The next line of a member.
  std::string answer(launcher::MemberId member);
  std::string ask(launcher::MemberId member, char what) {
    tell(member, what);
    return answer(member);
  }
  // All of them do it, and their answers.
  std::vector<std::string> ask_all(const std::vector<launcher::MemberId>& members, char what);
  // Until it waits to be let into an epoch.
  void until_enters(launcher::MemberId member);
  // A signal ends its wait; it says "interrupted", maybe more than once, and asks again.
  void interrupt(launcher::MemberId member);
  void until_epoch(uint64_t epoch);
  void until_started(launcher::MemberId member);
  void until_announced();
  void kill(launcher::MemberId member, int signal);
  pid_t pid(launcher::MemberId member) const { return members_.at(member).pid; }
  // Of the program itself where a shell has started it.
  pid_t joined_pid(launcher::MemberId member) const { return lives_->joined_pid(member); }
  void until_said(const std::string& words);
  // Why it has asked to enter an epoch, time and again.
  const std::vector<wire::EnterCause>& causes(launcher::MemberId member) const {
    return members_.at(member).causes;
  }
  // They have ended, with these codes.
  void end(const std::vector<launcher::MemberId>& members);

  std::vector<std::string> said;  // by the decider
  int ended_with = -1;            // the job

 private:
  struct Member {
    pid_t pid = -1;
    int input = -1, output = -1;
    std::string text;
    bool ended = false;
    std::vector<wire::EnterCause> causes;
  };
  void work();
  void on(const launcher::membership::Event& event);
  void start(const launcher::membership::StartMember& order);

  template <typename Condition>
  void until(const std::string& what, Condition condition);

  launcher::membership::MembershipDecider decider_;
  std::unique_ptr<rendezvous::StoreServer> store_;
  std::unique_ptr<launcher::LifeWatch> lives_;
  rendezvous::JobKey key_;
  UniqueFd key_fd_;
  std::string job_;
  std::map<launcher::MemberId, Member> members_;
  bool announced_ = false;
  const bool in_shells_;
};

}  // namespace rueda::testing

// An agent starts members, and stops them, when its controller says so.
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "launcher/agent/agent.h"
#include "launcher/hosts/member_wire.h"
#include "launcher/hosts/report_wire.h"
#include "tests/support/built.h"

namespace rueda::launcher {
namespace {

constexpr MemberId kRefused = 66;  // whom its controller cannot serve

// Tells one thing after the other, each when the one before has been done, and writes down what it
// is told.
class Script : public ControllerClient {
 public:
  void serve(ControlledHost* host) override { host_ = host; }
  Status open() override { return {}; }
  void failed(const std::string& why) override { note("failed " + why); }
  Status attach(UniqueFd agent_end, MemberId member) override {
    if (member == kRefused) return unavailable("no room in the store");
    streams_[member] = std::move(agent_end);
    return {};
  }
  OutputTaker* output_of(MemberId member, Rank) override {
    outputs_.push_back(std::make_unique<Output>(this, member));
    return outputs_.back().get();
  }
  bool congested() const override { return false; }
  void add_to_poll(std::vector<pollfd>*) const override {}
  int poll_limit_ms() const override { return -1; }
  void work() override {
    if (const auto now = std::exchange(next, nullptr)) now(this);
  }
  void rank_started(const MemberStart& start, pid_t pid, const std::string& error) override {
    note("started " + std::to_string(start.member) + " as " + std::to_string(start.place.rank) +
         (pid > 0 && error.empty() ? "" : ": " + error));
    pids[start.member] = pid;
  }
  void rank_ended(const RankEnd& end) override {
    note("ended " + std::to_string(end.member) + " " + std::to_string(end.wait_status) +
         (end.removed ? " removed" : ""));
    if (at_end) at_end(this);
  }
  void rank_lost(const life::LostRank& lost) override {
    note("lost " + std::to_string(lost.rank) + ": " + lost.cause.str());
    next = std::exchange(at_loss, nullptr);
  }
  void rank_fenced(MemberId member) override { note("fenced " + std::to_string(member)); }
  void say(const std::string& text) override { note("says " + text); }
  void report(HostReport) override {}
  void drained(int, int) override {}
  void count(const std::vector<RankCounters>&) override {}
  Result<std::string> drain_host(const std::string&) override { return std::string(); }
  void leaves(const std::string& why) override { note("leaves: " + why); }
  void finish() override {
    if (at_finish) at_finish(this);
    note("finished");
  }
  bool controller_was_lost() const override { return false; }

  // Through what it is on the wire.
  void order(const control::ControllerMessage& message) {
    host_->follow(order_from_wire(message).value());
  }
  // What is done when a member has printed this line.
  using Then = std::map<std::pair<MemberId, std::string>, std::function<void(Script*)>>;
  Then then;
  std::function<void(Script*)> next, at_loss, at_end, at_finish;
  std::map<MemberId, pid_t> pids;
  std::string said;

 private:
  class Output : public OutputTaker {
   public:
    Output(Script* script, MemberId member) : script_(script), member_(member) {}
    void take(Stream, std::string_view bytes) override {
      for (const char c : bytes) {
        if (c != '\n') {
          line_ += c;
          continue;
        }
        const auto what = script_->then.find({member_, std::exchange(line_, "")});
        if (what != script_->then.end()) what->second(script_);
      }
    }
    void end(Stream) override {}

   private:
    Script* const script_;
    const MemberId member_;
    std::string line_;
  };
  void note(const std::string& what) { said += what + "\n"; }

  ControlledHost* host_ = nullptr;
  std::map<MemberId, UniqueFd> streams_;
  std::vector<std::unique_ptr<Output>> outputs_;
};

AgentPlan plan(int ranks, const std::string& script) {
  AgentPlan plan;
  plan.options.command = {"sh", "-c", script};
  plan.options.grace_seconds = 30;
  plan.program = "/bin/sh";
  plan.base_environment = {"PATH=/usr/bin:/bin"};
  plan.job_id = "agent-members-" + std::to_string(getpid());
  plan.key = rendezvous::JobKey::make_random().value();
  plan.bindings.resize(1);
  for (Rank rank = 0; rank < ranks; ++rank) plan.places.push_back({rank, ranks, rank, ranks, 0, 1});
  return plan;
}

// In a process of its own, as it becomes a session's leader and waits for every child.
std::pair<int, std::string> run(const AgentPlan& plan,
                                const std::function<void(Script*)>& prepare) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    close(ends[0]);
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&blocked, signal);
    sigprocmask(SIG_BLOCK, &blocked, nullptr);
    int link[2];
    if (pipe(link) != 0) _exit(99);
    Script script;
    prepare(&script);
    const int code = run_agent(plan, UniqueFd(link[0]), &script);
    const bool written = write(ends[1], script.said.data(), script.said.size()) ==
                         static_cast<ssize_t>(script.said.size());
    _exit(written ? code : 99);
  }
  close(ends[1]);
  std::string said;
  char bytes[4096];
  for (ssize_t got = 0; (got = read(ends[0], bytes, sizeof(bytes))) > 0;)
    said.append(bytes, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, said};
}

std::pair<int, std::string> run(const AgentPlan& plan, const Script::Then& then) {
  return run(plan, [&](Script* script) { script->then = then; });
}

bool has(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

constexpr const char* kWaits = "trap 'exit 7' TERM; echo here; while :; do sleep 0.05; done";
constexpr const char* kLeaves = "trap 'exit 7' TERM; echo here; sleep 0.1; exit 3";
constexpr const char* kLost = "it ended without leaving the job";
constexpr double kSoon = 0.05;

// Told to leave, it is asked soon; from then on it has as long as it needs, however busy the
// machine is. For `then`, in the process of the agent, which looks at the plan anew each time.
void leave_soon(Script* script, AgentPlan* plan) {
  plan->options.grace_seconds = kSoon;
  script->order(stop_message(0, "", true));
  plan->options.grace_seconds = 600;
}

}  // namespace

TEST_CASE("a member is started in the place of another, whose end is no failure") {
  Script::Then then;
  then[{0, "here"}] = [](Script* script) {
    script->order(to_wire(MemberStart{5, {0, 1, 0, 1, 0, 1}}));
  };
  then[{5, "here"}] = [](Script* script) {
    script->order(stop_message(0, "it is too slow"));
    script->order(stop_message(5, "the job is smaller now"));
    script->order(stop_message(17, "nobody has this number"));
  };
  const auto [code, said] = run(plan(1, kWaits), then);
  INFO(said);
  CHECK(code == 0);
  CHECK(has(said, "started 0 as 0"));
  CHECK(has(said, "started 5 as 0"));
  CHECK(has(said, "ended 0 1792 removed"));
  CHECK(has(said, "ended 5 1792 removed"));
  CHECK(said.find("lost") == std::string::npos);
  CHECK(has(said, "finished"));
}

TEST_CASE("an order to start that is repeated starts no second process") {
  Script::Then then;
  then[{0, "here"}] = [](Script* script) {
    for (int i = 0; i < 2; ++i) script->order(to_wire(MemberStart{5, {0, 1, 0, 1, 0, 1}}));
    script->order(to_wire(MemberStart{0, {0, 1, 0, 1, 0, 1}}));
    script->order(stop_message(0, ""));
  };
  then[{5, "here"}] = [](Script* script) { script->order(stop_message(5, "")); };
  const auto [code, said] = run(plan(1, kWaits), then);
  INFO(said);
  CHECK(said.find("started 5") == said.rfind("started 5"));
  CHECK(said.find("started 0") == said.rfind("started 0"));
  CHECK(has(said, "ended 5 1792 removed"));
}

TEST_CASE("no member is started once the agent has finished") {
  AgentPlan one = plan(1, "echo here; exit 0");
  Script::Then then;
  then[{0, "here"}] = [](Script* script) {
    script->at_finish = [](Script* late) {
      late->order(to_wire(MemberStart{5, {0, 1, 0, 1, 0, 1}}));
    };
  };
  const auto [code, said] = run(one, then);
  INFO(said);
  CHECK(said.find("started 5 as 0: rank 0 cannot be started: ") != std::string::npos);
}

TEST_CASE("a member that was told to leave has the grace period to do so by itself") {
  AgentPlan leaving = plan(1, kWaits);
  Script::Then then;
  then[{0, "here"}] = [](Script* script) { script->order(stop_message(0, "", true)); };
  SECTION("it does not, and is asked") {
    then[{0, "here"}] = [&leaving](Script* script) { leave_soon(script, &leaving); };
    const auto [code, said] = run(leaving, then);
    INFO(said);
    CHECK(code == 0);
    CHECK(has(said, "ended 0 1792 removed"));
  }
  SECTION("it has time to answer though its agent was held up") {
    leaving.options.command = {
        "sh", "-c", "trap 'sleep 0.1; exit 7' TERM; echo here; while :; do sleep 0.05; done"};
    then[{0, "here"}] = [&leaving](Script* script) {
      leave_soon(script, &leaving);
      std::this_thread::sleep_for(std::chrono::duration<double>(4 * kSoon));
    };
    const auto [code, said] = run(leaving, then);
    INFO(said);
    CHECK(code == 0);
    CHECK(has(said, "ended 0 1792 removed"));
  }
  SECTION("it does") {
    leaving.options.command = {"sh", "-c", kLeaves};
    const auto [code, said] = run(leaving, then);
    INFO(said);
    CHECK(has(said, "ended 0 768 removed"));
  }
}

// It may have asked to enter the next epoch before it died.
TEST_CASE("a lost member that is told to go before it is reaped is still told of with its cause") {
  const bool was_told = GENERATE(true, false);  // else it is stopped, as when the job is over
  AgentPlan dying =
      plan(0, "trap '' TERM; trap 'kill -9 $$' USR1; " + std::string(built::kTestRank) +
                  " die; while :; do sleep 0.05; done");
  dying.elastic = true;
  dying.options.num_proc = 1;
  const auto [code, said] = run(dying, [&](Script* begin) {
    begin->next = [](Script* script) {
      script->order(to_wire(MemberStart{0, {0, 1, 0, 1, 0, 1}}));
    };
    begin->at_loss = [&](Script* script) {
      script->order(stop_message(0, "", was_told));
      kill(script->pids.at(0), SIGUSR1);
    };
    begin->at_end = [](Script* script) {
      Order over;
      over.kind = Order::Kind::kJobOver;
      script->order(to_wire(over));
    };
  });
  INFO(said);
  CHECK(code == 0);
  CHECK(has(said, std::string("lost 0: ") + kLost));
  // How a shell ends that was asked to says nothing of what was lost in it.
  const std::string how = was_told ? "killed by signal 9 (SIGKILL)" : kLost;
  const size_t last = said.rfind("lost 0: ");
  CHECK(last > said.find("lost 0: "));
  CHECK(said.substr(last).starts_with("lost 0: " + how + "\n"));
  CHECK(has(said, "ended 0 9"));
}

TEST_CASE("who was told to leave goes by itself when the job ends well meanwhile, or is ended") {
  Order over;
  over.kind = Order::Kind::kJobOver;
  AgentPlan leaving = plan(1, kLeaves);
  Script::Then then;
  SECTION("by itself") {
    leaving.options.grace_seconds = 600;
    then[{0, "here"}] = [&over](Script* script) {
      script->order(stop_message(0, "", true));
      script->order(to_wire(over));
    };
    const auto [code, said] = run(leaving, then);
    INFO(said);
    CHECK(has(said, "ended 0 768 removed"));
  }
  SECTION("it is asked") {
    leaving.options.command = {"sh", "-c", kWaits};
    then[{0, "here"}] = [&](Script* script) {
      leaving.options.grace_seconds = 600;  // the end of the job asks it, and not the time to leave
      script->order(stop_message(0, "", true));
      leaving.options.grace_seconds = 2 * kSoon;
      script->order(to_wire(over));
      leaving.options.grace_seconds = 600;
    };
    const auto [code, said] = run(leaving, then);
    INFO(said);
    CHECK(code == 0);
    CHECK(has(said, "ended 0 1792 removed"));
  }
}

TEST_CASE("a member that runs and cannot be served is killed, and its end told when it has come") {
  Script::Then then;
  then[{0, "here"}] = [](Script* script) {
    script->order(to_wire(MemberStart{kRefused, {1, 2, 1, 2, 0, 1}}));
  };
  AgentPlan failing = plan(1, kWaits);
  failing.options.grace_seconds = 0.1;
  const auto [code, said] = run(failing, then);
  INFO(said);
  CHECK(has(said, "started 66 as 1"));
  CHECK(has(said, "says rank 1 cannot be started: no room in the store"));
  CHECK(has(said, "ended 66 9"));
}

TEST_CASE("a member that does not end when it is asked is killed after the grace period") {
  Script::Then then;
  then[{0, "here"}] = [](Script* script) { script->order(stop_message(0, "")); };
  AgentPlan stubborn = plan(1, "trap '' TERM; echo here; while :; do sleep 0.05; done");
  stubborn.options.grace_seconds = 0.1;
  const auto [code, said] = run(stubborn, then);
  INFO(said);
  CHECK(code == 0);
  CHECK(has(said, "ended 0 9 removed"));
}

TEST_CASE("what fails among members that stay stops the others, as in every job") {
  Script::Then then;
  then[{1, "here"}] = [](Script* script) {
    script->order(to_wire(MemberStart{2, {1, 2, 1, 2, 0, 1}}));
  };
  AgentPlan failing = plan(2,
                           "trap 'exit 7' TERM; echo here; [ $RUEDA_MEMBER = 2 ] && exit 3; "
                           "while :; do sleep 0.05; done");
  const auto [code, said] = run(failing, then);
  INFO(said);
  CHECK(has(said, "started 2 as 1"));
  CHECK(has(said, "ended 2 768"));
  CHECK(has(said, "ended 0 1792"));
  CHECK(has(said, "ended 1 1792"));
}

TEST_CASE("a member that cannot be started is told of, and the others go on") {
  Script::Then then;
  then[{0, "here"}] = [](Script* script) {
    // UBSan looks with a pipe of its own at the memory of types that it has not met yet.
    (void)errno_status("", EMFILE);
    // Room for one more pipe; a rank needs two.
    const int lowest = dup(STDIN_FILENO);
    close(lowest);
    rlimit usual = {};
    getrlimit(RLIMIT_NOFILE, &usual);
    const rlimit scarce = {static_cast<rlim_t>(lowest) + 3, usual.rlim_max};
    setrlimit(RLIMIT_NOFILE, &scarce);
    script->order(to_wire(MemberStart{1, {1, 2, 1, 2, 0, 1}}));
    setrlimit(RLIMIT_NOFILE, &usual);
    script->order(stop_message(0, ""));
  };
  const auto [code, said] = run(plan(1, kWaits), then);
  INFO(said);
  CHECK(code == 0);
  CHECK(said.find("started 1 as 1: rank 1 cannot be started: ") != std::string::npos);
  CHECK(has(said, "ended 0 1792 removed"));
}

}  // namespace rueda::launcher

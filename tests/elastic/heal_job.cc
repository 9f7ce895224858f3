#include "tests/elastic/heal_job.h"
#include "tests/support/built.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <variant>

namespace rueda::testing {
namespace {

using namespace launcher::membership;
using launcher::LifeWatch;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{100};

void set(std::vector<std::string>* environment, const std::string& name, int64_t value) {
  environment->push_back(name + "=" + std::to_string(value));
}

}  // namespace

HealJob::HealJob(Policy policy, int slots, bool in_shells)
    : decider_(policy),
      key_(rendezvous::JobKey::make_random().value()),
      job_("heal-" + std::to_string(getpid()) + "-" + std::to_string(slots)),
      in_shells_(in_shells) {
  auto store = rendezvous::StoreServer::start();
  REQUIRE(store.ok());
  store_ = std::move(store).value();
  auto lives = LifeWatch::create("here", std::chrono::seconds(3600));
  REQUIRE(lives.ok());
  lives_ = std::move(lives).value();
  auto key_fd = key_.to_memfd();
  REQUIRE(key_fd.ok());
  key_fd_ = std::move(key_fd).value();
  HostsFound found;
  found.hosts.push_back({"here", slots, "", 0});
  on(found);
}

HealJob::~HealJob() {
  for (auto& [number, member] : members_) {
    close(member.input);
    close(member.output);
    if (member.ended) continue;
    ::kill(member.pid, SIGKILL);
    waitpid(member.pid, nullptr, 0);
  }
}

void HealJob::start(const StartMember& order) {
  const auto handed = lives_->add(order.member, order.place.rank);
  REQUIRE(handed.ok());
  int talk[2], in[2], out[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk) == 0);
  REQUIRE((pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0));
  std::vector<std::string> environment = {"PATH=/usr/bin:/bin", "RUEDA_ELASTIC=1",
                                          "RUEDA_JOB_ID=" + job_, "RUEDA_HEAP_BYTES=67108864",
                                          "RUEDA_LIFE_FDS=" + handed.value().variable};
  for (const char* const name :
       {"ASAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS", "RUEDA_LOG_LEVEL", "RUEDA_START_TIMEOUT"}) {
    if (const char* const value = getenv(name))
      environment.push_back(std::string(name) + "=" + value);
  }
  set(&environment, "RUEDA_MEMBER", static_cast<int64_t>(order.member));
  set(&environment, "RUEDA_RANK", order.place.rank);
  set(&environment, "RUEDA_SIZE", order.place.size);
  set(&environment, "RUEDA_AGENT_FD", talk[1]);
  set(&environment, "RUEDA_KEY_FD", key_fd_.get());
  std::vector<char*> words;
  for (std::string& variable : environment) words.push_back(variable.data());
  words.push_back(nullptr);
  std::string program = built::kHealProgram, script = program + "; read forever";
  char shell[] = "/bin/sh", option[] = "-c";
  char* alone[] = {program.data(), nullptr};
  char* wrapped[] = {shell, option, script.data(), nullptr};
  char** const arguments = in_shells_ ? wrapped : alone;
  std::vector<int> kept = handed.value().fds;
  kept.insert(kept.end(), {talk[1], key_fd_.get()});
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    for (const int fd : kept) fcntl(fd, F_SETFD, 0);
    execve(arguments[0], arguments, words.data());
    _exit(127);
  }
  for (const int fd : {in[0], out[1], talk[1]}) close(fd);
  fcntl(out[0], F_SETFL, O_NONBLOCK);
  Member& member = members_[order.member];
  member.pid = pid;
  member.input = in[1];
  member.output = out[0];
  REQUIRE(lives_->started(order.member, pid).ok());
  REQUIRE(store_->add(UniqueFd(talk[0]), order.member).ok());
  on(MemberStarted{order.member, pid, ""});
}

void HealJob::on(const Event& event) {
  const uint64_t before = decider_.epoch();
  const std::vector<Action> actions = decider_.on(event, Clock::now());
  if (decider_.epoch() != before) {
    std::vector<uint64_t> members;
    for (const auto& seat : decider_.seats()) {
      members.push_back(seat.member);
      lives_->set_rank(seat.member, seat.rank);
    }
    store_->begin_epoch(decider_.epoch(), members);
  }
  for (const Action& action : actions) {
    if (const auto* order = std::get_if<StartMember>(&action)) start(*order);
    if (const auto* order = std::get_if<StopMember>(&action)) {
      lives_->expect_end(order->member);
      ::kill(members_.at(order->member).pid, SIGKILL);
    }
    if (const auto* end = std::get_if<EndEpoch>(&action)) {
      life::LostRank lost =
          lives_->verdict(end->lost, members_.at(end->lost).pid, "it ended", false);
      lost.epoch = end->epoch;
      if (end->has_left) lost.rank = -1;
      lives_->tell(lost);
      if (!end->has_left) store_->mark_dead(end->lost, lost.describe());
    }
    if (const auto* answer = std::get_if<Answer>(&action))
      store_->answer(answer->member, answer->epoch());
    if (const auto* news = std::get_if<Announce>(&action)) {
      announced_ = true;
      lives_->announce(news->serial << 8 | static_cast<uint64_t>(news->changes));
    }
    if (const auto* line = std::get_if<Say>(&action)) said.push_back(line->text);
    if (const auto* end = std::get_if<EndJob>(&action)) ended_with = end->exit_code;
  }
}

// Waits for something to happen, and does what there is to do.
void HealJob::work() {
  std::vector<pollfd> fds = {{store_->entries_fd(), POLLIN, 0}};
  lives_->add_to_poll(&fds);
  for (const auto& [number, member] : members_) {
    if (!member.ended) fds.push_back({member.output, POLLIN, 0});
  }
  poll(fds.data(), fds.size(), 10);
  LifeWatch::Findings found = lives_->look(Clock::now());
  for (const auto& lost : found.lost) on(MemberLost{lost.member, lost.cause.str()});
  for (const auto member : found.fenced) on(MemberFenced{member});
  for (const auto& entry : store_->take_entries()) {
    members_.at(entry.member).causes.push_back(entry.standing.cause);
    on(MemberEnters{entry.member, entry.standing});
  }
  std::vector<launcher::MemberId> all;
  for (const auto& [number, member] : members_) all.push_back(number);
  for (const launcher::MemberId number : all) {
    Member& member = members_.at(number);
    char text[4096];
    for (ssize_t got = 0; (got = read(member.output, text, sizeof(text))) > 0;)
      member.text.append(text, static_cast<size_t>(got));
    int status = 0;
    if (member.ended || waitpid(member.pid, &status, WNOHANG) != member.pid) continue;
    member.ended = true;
    lives_->ended(number);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    on(MemberEnded{number, code, code != 0, "it ended with code " + std::to_string(code)});
  }
  if (decider_.next_deadline() && *decider_.next_deadline() <= Clock::now()) on(Tick{});
}

template <typename Condition>
void HealJob::until(const std::string& what, Condition condition) {
  const auto end = Clock::now() + kPatience;
  while (!condition()) {
    work();
    INFO("waiting for " << what);
    REQUIRE(Clock::now() < end);
  }
}

void HealJob::tell(launcher::MemberId member, char what) {
  until_started(member);
  REQUIRE(write(members_.at(member).input, &what, 1) == 1);
}

std::string HealJob::answer(launcher::MemberId number) {
  until_started(number);
  std::string& text = members_.at(number).text;
  until("an answer of member " + std::to_string(number),
        [&] { return text.find('\n') != std::string::npos; });
  const size_t end = text.find('\n');
  const std::string line = text.substr(0, end);
  text.erase(0, end + 1);
  return line;
}

std::vector<std::string> HealJob::ask_all(const std::vector<launcher::MemberId>& members,
                                          char what) {
  for (const auto member : members) tell(member, what);
  std::vector<std::string> answers;
  for (const auto member : members) answers.push_back(answer(member));
  return answers;
}

void HealJob::until_enters(launcher::MemberId member) {
  until_started(member);
  const auto& causes = members_.at(member).causes;
  const size_t before = causes.size();
  until("an entry", [&] { return causes.size() > before; });
}

void HealJob::interrupt(launcher::MemberId member) {
  until("an interrupted wait", [&] {
    ::kill(members_.at(member).pid, SIGUSR1);  // one that comes before the wait is not seen
    return members_.at(member).text.find("interrupted\n") != std::string::npos;
  });
}

void HealJob::until_said(const std::string& words) {
  until("'" + words + "'", [&] {
    return std::any_of(said.begin(), said.end(), [&](const std::string& line) {
      return line.find(words) != std::string::npos;
    });
  });
}

void HealJob::until_epoch(uint64_t epoch) {
  until("epoch " + std::to_string(epoch), [&] { return decider_.epoch() >= epoch; });
}

void HealJob::until_started(launcher::MemberId member) {
  until("member " + std::to_string(member), [&] { return members_.contains(member); });
}

void HealJob::until_announced() {
  until("an announcement", [&] { return announced_; });
  announced_ = false;
}

void HealJob::kill(launcher::MemberId member, int signal) {
  ::kill(members_.at(member).pid, signal);
}

void HealJob::end(const std::vector<launcher::MemberId>& members) {
  for (const auto member : members) {
    close(members_.at(member).input);
    members_.at(member).input = -1;
  }
  for (const auto member : members) until("an end", [&] { return members_.at(member).ended; });
}

}  // namespace rueda::testing

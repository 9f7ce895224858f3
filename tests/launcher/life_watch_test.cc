// What an agent sees of processes that come to an epoch, leave it for the next, and end.
#include "launcher/agent/life_watch.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "launcher/processes/process_tree.h"
#include "runtime/observe/life/life_line.h"

namespace rueda::launcher {
namespace {

using life::LifeLine;

// A process of the job, which does what it is told by one letter after the other and answers each.
class Process {
 public:
  Process(LifeWatch* watch, MemberId member) {
    const auto handed = watch->add(member, static_cast<Rank>(member));
    REQUIRE(handed.ok());
    start(handed.value().fds);
    REQUIRE(watch->started(member, pid_).ok());
  }
  // Another one in the same place, as the second command of a shell.
  explicit Process(const std::vector<int>& fds) { start(fds); }
  ~Process() {
    close(to_);
    close(from_);
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  char tell(char what) {
    REQUIRE(write(to_, &what, 1) == 1);
    char answer = 0;
    REQUIRE(read(from_, &answer, 1) == 1);
    return answer;
  }
  // It has ended, and is not reaped.
  void die() {
    kill(pid_, SIGKILL);
    siginfo_t info;
    REQUIRE(waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) == 0);
  }
  pid_t pid() const { return pid_; }
  const std::vector<int>& fds() const { return fds_; }

 private:
  void start(const std::vector<int>& fds) {
    fds_ = fds;
    int to[2], from[2];
    REQUIRE((pipe(to) == 0 && pipe(from) == 0));
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      close(to[1]);
      close(from[0]);
      live(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = from[0];
  }

  // 1..9: is in that epoch; n: goes on to the next; l: leaves; ?: who has been lost to it; a: has
  // it heard of a change?
  [[noreturn]] void live(int in, int out) const {
    std::unique_ptr<LifeLine> line;
    char what = 0;
    while (read(in, &what, 1) == 1) {
      char answer = 'k';
      if (what >= '1' && what <= '9') {
        auto opened = LifeLine::open({fds_[0], fds_[1], fds_[2]}, false);
        if (!opened.ok()) _exit(97);
        line = std::move(opened).value();
        line->enter(static_cast<uint64_t>(what - '0'), false);
        line->begin();
      } else if (what == 'n') {
        line->goes_on();
        line.reset();
      } else if (what == 'l') {
        line.reset();
      } else if (what == '?') {
        const auto lost = line->lost();
        answer = lost ? static_cast<char>('0' + lost->member) : '-';
      }
      if (what == 'a') answer = line->announced() == 0x102 ? 'a' : '-';
      if (write(out, &answer, 1) != 1) break;
    }
    _exit(0);
  }

  std::vector<int> fds_;
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
};

std::unique_ptr<LifeWatch> make_watch() {
  auto watch = LifeWatch::create("here", std::chrono::seconds(3600));
  REQUIRE(watch.ok());
  return std::move(watch).value();
}

// Looks until this member is known to be lost and fenced; all that was found.
LifeWatch::Findings look_for(LifeWatch* watch, MemberId member) {
  LifeWatch::Findings all;
  const TimePoint end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (;;) {
    const TimePoint now = std::chrono::steady_clock::now();
    REQUIRE(now < end);
    LifeWatch::Findings found = watch->look(now);
    all.lost.insert(all.lost.end(), found.lost.begin(), found.lost.end());
    all.fenced.insert(all.fenced.end(), found.fenced.begin(), found.fenced.end());
    if (std::count(all.fenced.begin(), all.fenced.end(), member) > 0) return all;
    std::vector<pollfd> fds;
    watch->add_to_poll(&fds);
    const auto left = *watch->next_deadline() - std::chrono::steady_clock::now();
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(ms, 0)));
  }
}

TEST_CASE(
    "an end in an epoch or between two is a loss, before the first or after the last it is none",
    "[life_watch]") {
  const auto watch = make_watch();
  Process inside(watch.get(), 0), between(watch.get(), 1), fresh(watch.get(), 2),
      left(watch.get(), 3);
  inside.tell('1');
  between.tell('1');
  between.tell('n');
  left.tell('1');
  left.tell('n');
  left.tell('2');
  left.tell('l');
  CHECK(watch->has_not_left(2));
  CHECK(watch->has_not_left(1));
  CHECK_FALSE(watch->has_not_left(3));
  left.die();
  fresh.die();
  between.die();
  const auto first = look_for(watch.get(), 1);
  REQUIRE(first.lost.size() == 1);
  CHECK(first.lost[0].member == 1);
  CHECK(first.lost[0].pid == between.pid());
  watch->set_rank(0, 7);
  inside.die();
  const auto second = look_for(watch.get(), 0);
  REQUIRE(second.lost.size() == 1);
  CHECK(second.lost[0].member == 0);
  CHECK(second.lost[0].rank == 7);
  CHECK(second.fenced == std::vector<MemberId>{0});
}

// Descriptors and threads of this process.
int held() {
  int count = 0;
  for (const char* const folder : {"/proc/self/fd", "/proc/self/task"}) {
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  }
  return count;
}

TEST_CASE("who is forgotten holds nothing, wherever its end was", "[life_watch]") {
  const auto watch = make_watch();
  const int before = held();
  for (MemberId member = 0; member < 6; ++member) {
    Process one(watch.get(), member);
    if (member % 3 > 0) one.tell('1');
    if (member % 3 > 1) one.tell('l');
    one.die();
    watch->ended(member);
    watch->forget(member);
    CHECK_FALSE(watch->has_joined(member));
  }
  CHECK(held() == before);
}

TEST_CASE("who comes to a place whose first process has left in order is watched like it",
          "[life_watch]") {
  const auto watch = make_watch();
  Process first(watch.get(), 5);
  first.tell('1');
  first.tell('l');
  first.die();
  Process second(first.fds());
  second.tell('2');
  second.die();
  const auto found = look_for(watch.get(), 5);
  REQUIRE(found.lost.size() == 1);
  CHECK(found.lost[0].member == 5);
}

TEST_CASE("a verdict ends its epoch and those before it, and an older one takes nothing back",
          "[life_watch]") {
  const auto watch = make_watch();
  Process one(watch.get(), 1);
  life::LostRank lost;
  lost.epoch = 3;
  lost.member = 4;
  one.tell('2');
  CHECK(one.tell('?') == '-');
  watch->tell(lost);
  CHECK(one.tell('?') == '4');
  one.tell('n');
  one.tell('3');
  CHECK(one.tell('?') == '4');
  one.tell('n');
  one.tell('5');
  CHECK(one.tell('?') == '-');
  lost.epoch = 5;
  lost.member = 6;
  watch->tell(lost);
  lost.epoch = 3;
  lost.member = 4;
  watch->tell(lost);  // its cause has become final
  CHECK(one.tell('?') == '6');
}

TEST_CASE("a verdict of another epoch names no rank of this one", "[life_watch]") {
  life::LostRank lost;
  lost.epoch = 4;
  lost.rank = 2;
  lost.host.set("far");
  CHECK(lost.verdict(4).facts().rank == 2);
  CHECK(lost.verdict(3).facts().rank == -1);
  lost.epoch = 0;
  CHECK(lost.verdict(3).facts().rank == 2);
  lost.rank = -1;
  lost.cause.set("it was left");
  CHECK(lost.verdict(3).message() == "this epoch of the job has ended: it was left");
}

TEST_CASE("a process is fenced when none of its threads runs", "[life_watch]") {
  const auto watch = make_watch();
  Process one(watch.get(), 1);
  one.tell('1');
  CHECK_FALSE(all_threads_exiting(one.pid()));
  kill(one.pid(), SIGSTOP);  // it can go on
  CHECK_FALSE(all_threads_exiting(one.pid()));
  one.die();
  const pid_t pid = one.pid();
  while (!all_threads_exiting(pid)) {
  }
}

TEST_CASE("what is announced is there for all, whatever epoch they are in", "[life_watch]") {
  const auto watch = make_watch();
  Process one(watch.get(), 1), two(watch.get(), 2);
  one.tell('1');
  CHECK(one.tell('a') == '-');
  watch->announce(0x102);
  two.tell('2');
  CHECK(one.tell('a') == 'a');
  CHECK(two.tell('a') == 'a');
}

}  // namespace
}  // namespace rueda::launcher

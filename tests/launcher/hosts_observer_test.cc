// The controller's questions to its hosts: whose answers count, what is said of hosts without one.
#include "launcher/controller/hosts_observer.h"
#include "collectives/host/monotonic.h"
#include "launcher/job/job_id.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "collectives/base/unique_fd.h"
#include "runtime/observe/flight/flight_layout.h"
#include "tests/support/folder.h"

using namespace rueda::launcher;
namespace flight = rueda::flight;

namespace {

using Clock = std::chrono::steady_clock;

// Two hosts with two ranks each; what the observer sends is kept.
struct Hosts {
  std::vector<std::pair<int, control::ControllerMessage>> sent;
  std::string job;
  Clock::time_point now = Clock::now();
  std::function<void()> while_draining = [] {};
  bool are_kept = true;  // drains, elsewhere
  HostsObserver observer;

  explicit Hosts(double stall_seconds = 0, const std::string& folder = "",
                 const std::string& id = make_job_id())
      : job(id),
        observer({job, "train", 4, stall_seconds, false, folder},
                 {[this](int host, control::ControllerMessage message) {
                    sent.emplace_back(host, std::move(message));
                  },
                  [](int) { return true; },
                  [] {
                    return std::vector<HostStatus>{{"h0", "running", 0, {0, 1}},
                                                   {"h1", "running", 0, {2, 3}},
                                                   {"", "gone", 0, {}}};
                  },
                  [this](const std::string&) -> rueda::Result<std::string> {
                    while_draining();
                    return std::string("it leaves");
                  },
                  [this] { return are_kept; }}) {
    for (const int rank : {0, 1, 2, 3})
      observer.add_member(rank / 2, static_cast<MemberId>(rank), rank);
  }

  std::vector<std::string> later(std::chrono::milliseconds time) {
    now += time;
    return observer.work(now);
  }
  // Files are written on a thread of their own.
  std::vector<std::string> once_written() {
    const auto until = Clock::now() + std::chrono::minutes(2);
    while (observer.busy() && Clock::now() < until) {
      if (auto lines = observer.work(now); !lines.empty()) return lines;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  }
  uint64_t round() const { return sent.back().second.observe().round(); }
};

// A rank whose only operation waits since so many seconds, on a clock that is an hour behind ours;
// or that has recorded nothing.
control::Observed view(uint64_t round, int rank, bool last, double waits_for) {
  constexpr int64_t kBehind = int64_t{3600} * 1'000'000'000;
  control::Observed message;
  message.set_round(round);
  message.set_rank(rank);
  message.set_member(static_cast<uint64_t>(rank));
  message.set_last(last);
  message.set_now_ns(rueda::host::monotonic_ns() - kBehind);
  flight::Header header{};
  header.magic = flight::kMagic;
  header.version = flight::kVersion;
  header.header_bytes = sizeof(header);
  header.total_bytes = flight::kTotalBytes;
  header.layout = flight::layout_hash();
  header.rank = rank;
  header.size = 4;
  header.pid = 1000 + rank;
  header.submitted = waits_for > 0 ? 1 : 0;
  auto* piece = message.add_pieces();
  piece->set_data(&header, sizeof(header));
  if (waits_for > 0) {
    flight::Record record{};
    record.stamp = 1;
    record.submitted_ns =
        rueda::host::monotonic_ns() - kBehind - static_cast<int64_t>(waits_for * 1e9);
    record.state = static_cast<uint8_t>(flight::State::kSubmitted);
    std::strcpy(record.name, "allreduce.x");
    piece = message.add_pieces();
    piece->set_offset(flight::kRecordsOffset);
    piece->set_data(&record, sizeof(record));
  }
  return message;
}

bool has(const std::vector<std::string>& lines, const std::string& text) {
  for (const std::string& line : lines) {
    if (line.find(text) != std::string::npos) return true;
  }
  return false;
}

// A socket, and `use` of it with the address at which tools ask the job.
rueda::UniqueFd at_door(const std::string& job, int (*use)(int, const sockaddr*, socklen_t)) {
  rueda::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string name = "rueda-status/" + std::to_string(geteuid()) + "/" + job;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  REQUIRE(use(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  return fd;
}

// As `rueda` asks: the question is there before the job looks.
rueda::UniqueFd ask(const std::string& job, const std::string& question) {
  rueda::UniqueFd fd = at_door(job, connect);
  const std::string line = question + "\n";
  REQUIRE(send(fd.get(), line.data(), line.size(), 0) == static_cast<ssize_t>(line.size()));
  return fd;
}

// What has come; nothing if the answer has no end yet.
std::optional<std::string> answer_at(const rueda::UniqueFd& fd) {
  std::string text;
  char bytes[256];
  for (;;) {
    const ssize_t n = recv(fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0) return std::nullopt;
    if (n == 0) return text;
    text.append(bytes, static_cast<size_t>(n));
  }
}

}  // namespace

TEST_CASE("a question that comes while another is answered is heard", "[observer]") {
  Hosts hosts;
  rueda::UniqueFd second;
  hosts.while_draining = [&] { second = ask(hosts.job, "drain h1"); };
  const rueda::UniqueFd first = ask(hosts.job, "drain h0");
  hosts.later(std::chrono::milliseconds(10));
  CHECK(answer_at(first) == "yes it leaves");
  hosts.while_draining = [] {};
  hosts.later(std::chrono::milliseconds(10));
  CHECK(answer_at(second) == "yes it leaves");
}

TEST_CASE("who drains a host is answered once that would outlive the controller", "[observer]") {
  Hosts hosts;
  hosts.are_kept = false;
  const rueda::UniqueFd first = ask(hosts.job, "drain h0");
  hosts.later(std::chrono::milliseconds(10));
  hosts.later(std::chrono::milliseconds(10));
  CHECK_FALSE(answer_at(first));
  hosts.are_kept = true;
  hosts.later(std::chrono::milliseconds(10));
  CHECK(answer_at(first) == "yes it leaves");
}

TEST_CASE("where tools cannot ask yet that is tried again", "[observer]") {
  const std::string job = make_job_id();
  rueda::UniqueFd other = at_door(job, bind);
  Hosts hosts(0, "", job);
  hosts.later(std::chrono::seconds(1));
  other.reset();
  hosts.later(std::chrono::seconds(1));
  const rueda::UniqueFd question = ask(hosts.job, "drain h0");
  hosts.later(std::chrono::milliseconds(10));
  CHECK(answer_at(question) == "yes it leaves");
}

TEST_CASE("a wait over hosts is explained once, to the user and to those that wait", "[observer]") {
  Hosts hosts(10);
  CHECK(hosts.later(std::chrono::seconds(2)).empty());
  CHECK(hosts.sent.empty());  // nobody is asked while nothing is old
  control::Heartbeat beat;
  beat.add_ranks()->set_rank(0);
  beat.mutable_ranks(0)->set_oldest_wait_ms(20'000);
  hosts.observer.take(1, beat);  // of a rank that is not its own
  hosts.later(std::chrono::seconds(2));
  CHECK(hosts.sent.empty());
  hosts.observer.take(0, beat);
  hosts.later(std::chrono::seconds(2));
  REQUIRE(hosts.sent.size() == 2);
  const auto answer = [&] {
    const uint64_t round = hosts.round();
    hosts.observer.take(0, view(round, 0, false, 20));
    hosts.observer.take(0, view(round, 1, true, 20));
    hosts.observer.take(1, view(round, 2, false, 20));
    hosts.observer.take(1, view(round, 3, true, 0));
  };
  answer();
  hosts.later(std::chrono::milliseconds(10));
  REQUIRE(hosts.sent.size() == 4);  // asked more closely: the stacks of rank 3
  CHECK(hosts.sent[2].second.observe().stacks_of().empty());
  REQUIRE(hosts.sent[3].second.observe().stacks_of().size() == 1);
  CHECK(hosts.sent[3].second.observe().stacks_of(0) == 3);
  answer();
  const auto lines = hosts.later(std::chrono::milliseconds(10));
  CHECK(has(lines, "stalled for 20 s: allreduce 'x'"));
  CHECK(has(lines, "in: ranks 0-2"));
  CHECK(has(lines, "not in: rank 3 (pid 1003)"));
  std::vector<uint64_t> mailed;
  for (size_t i = 4; i < hosts.sent.size(); ++i) {
    if (hosts.sent[i].second.has_mail()) mailed.push_back(hosts.sent[i].second.mail().member());
  }
  CHECK(mailed == std::vector<uint64_t>{0, 1, 2});
  hosts.later(std::chrono::seconds(2));
  answer();
  CHECK(hosts.later(std::chrono::milliseconds(10)).empty());  // it has been said
}

TEST_CASE("who has got the number of one that waited is not told of its wait", "[observer]") {
  Hosts hosts(10);
  control::Heartbeat beat;
  beat.add_ranks()->set_rank(0);
  beat.mutable_ranks(0)->set_oldest_wait_ms(20'000);
  hosts.observer.take(0, beat);
  hosts.later(std::chrono::seconds(2));
  const auto answer = [&](int waiting) {
    const uint64_t round = hosts.round();
    for (const int rank : {0, 1, 2, 3})
      hosts.observer.take(rank / 2, view(round, rank, rank % 2 == 1, rank < waiting ? 20 : 0));
  };
  answer(3);
  hosts.later(std::chrono::milliseconds(10));
  answer(3);
  // Rank 1 is lost before all is told: a new one has its number, on the other host.
  hosts.observer.add_member(1, 4, 1);
  hosts.observer.begin_epoch({{0, 0}, {2, 2}, {3, 3}, {4, 1}});
  const size_t before = hosts.sent.size();
  hosts.later(std::chrono::milliseconds(10));
  std::vector<uint64_t> mailed;
  for (size_t i = before; i < hosts.sent.size(); ++i) {
    if (hosts.sent[i].second.has_mail()) mailed.push_back(hosts.sent[i].second.mail().member());
  }
  CHECK(mailed == std::vector<uint64_t>{0, 2});
}

TEST_CASE("files are written of every rank that was told of, missing ones are named",
          "[observer]") {
  const rueda::testing::Folder folder;
  Hosts hosts(0, folder.file("flight"));
  hosts.observer.request_dump(false);
  hosts.later(std::chrono::milliseconds(10));
  REQUIRE(hosts.sent.size() == 2);
  CHECK(hosts.sent[0].second.observe().detail() == control::Observe::WHOLE);
  const uint64_t round = hosts.round();
  hosts.observer.take(0, view(round - 1, 0, true, 1));  // of an earlier round
  hosts.observer.take(0, view(round, 2, false, 1));     // another host's rank
  hosts.observer.take(0, view(round, 0, false, 1));
  hosts.observer.take(0, view(round, 1, true, 1));
  CHECK(hosts.observer.busy());
  hosts.observer.host_gone(1);
  const auto lines = hosts.once_written();
  CHECK_FALSE(hosts.observer.busy());
  CHECK(has(lines, "no flight recorder came from ranks 2, 3"));
  CHECK(has(lines, "rueda explain "));
  CHECK(access(folder.file("flight/flight.rank1.bin").c_str(), R_OK) == 0);
  CHECK(access(folder.file("flight/flight.rank2.bin").c_str(), R_OK) != 0);
}

TEST_CASE("a folder that hangs keeps the controller from nothing, and is told", "[observer]") {
  const rueda::testing::Folder folder;
  const std::string fifo = folder.file("flight.rank0.bin.part");  // full after a part of the file
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  const rueda::UniqueFd reader(open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  {
    Hosts hosts(0, folder.file(""));
    hosts.observer.request_dump(false);
    hosts.later(std::chrono::milliseconds(10));
    const auto answer = [&] {
      for (const int host : {0, 1}) {
        hosts.observer.take(host, view(hosts.round(), 2 * host, false, 1));
        hosts.observer.take(host, view(hosts.round(), 2 * host + 1, true, 1));
      }
    };
    answer();
    CHECK(hosts.later(std::chrono::milliseconds(10)).empty());
    CHECK(hosts.observer.busy());
    pollfd begun{reader.get(), POLLIN, 0};  // what has not begun would be forgotten
    REQUIRE(poll(&begun, 1, 60'000) == 1);
    CHECK(has(hosts.later(std::chrono::seconds(6)),
              "does not answer: the flight recorders were not"));
    CHECK_FALSE(hosts.observer.busy());
    hosts.observer.request_dump(false);
    hosts.later(std::chrono::milliseconds(10));
    answer();
    const auto again = hosts.later(std::chrono::milliseconds(10));
    INFO((again.empty() ? "" : again.front()));
    CHECK(has(again, "does not answer"));
  }
  CHECK(access(folder.file("flight.rank1.bin").c_str(), R_OK) != 0);
}

TEST_CASE("pieces that do not fit are told, and harm nothing", "[observer]") {
  const rueda::testing::Folder folder;
  Hosts hosts(0, folder.file("flight"));
  hosts.observer.request_dump(false);
  hosts.later(std::chrono::milliseconds(10));
  control::Observed bad = view(hosts.round(), 0, true, 1);
  bad.add_pieces()->set_offset(~uint64_t{7});
  bad.mutable_pieces(2)->set_data(std::string(64, 'x'));
  hosts.observer.take(0, bad);
  hosts.observer.host_gone(1);
  const auto lines = hosts.once_written();
  CHECK(has(lines, "rank 0: a piece of a flight recorder lies outside of its memory"));
  CHECK(access(folder.file("flight/flight.rank0.bin").c_str(), R_OK) != 0);
}

TEST_CASE("`rueda status` is answered without the host that says nothing", "[observer]") {
  Hosts hosts;
  hosts.observer.add_member(1, 9, 4);
  hosts.observer.forget_member(9);  // could not be started
  std::string answer;
  std::thread tool([&] {
    auto said = ask_job(hosts.job, "status");
    answer = said.ok() ? said.value() : said.status().message();
  });
  while (hosts.sent.empty()) {
    std::vector<pollfd> fds;
    hosts.observer.add_to_poll(&fds);
    poll(fds.data(), fds.size(), 10);
    hosts.later(std::chrono::milliseconds(0));
  }
  const uint64_t round = hosts.round();
  hosts.observer.take(0, view(round, 0, false, 5));
  hosts.observer.take(0, view(round, 1, true, 5));
  hosts.later(std::chrono::seconds(4));
  hosts.later(std::chrono::milliseconds(0));
  tool.join();
  CHECK(answer.find("\"rank\":0,\"life\":\"running\"") != std::string::npos);
  CHECK(answer.find("\"rank\":3,\"life\":\"silent\",\"state\":\"its host h1 does not answer\"") !=
        std::string::npos);
  CHECK(answer.find("allreduce 'x'") != std::string::npos);
  CHECK(answer.find("\"rank\":4") == std::string::npos);
  // A number whose host was gone before a controller took over.
  CHECK(answer.find("host h1: running") != std::string::npos);
  CHECK(answer.find("host : ") == std::string::npos);
  CHECK(answer.find("\"name\":\"\"") == std::string::npos);
}

TEST_CASE("a number is that of the epoch's member, whoever had it before", "[observer]") {
  Hosts hosts(10);
  hosts.observer.add_member(0, 7, 2);  // takes the place of member 2, which was lost
  hosts.observer.member_ended(2);
  hosts.observer.begin_epoch({{0, 0}, {1, 1}, {3, 2}, {7, 3}});
  control::Heartbeat beat;
  beat.add_ranks()->set_rank(2);  // its host does not know of the epoch yet
  beat.mutable_ranks(0)->set_member(3);
  beat.mutable_ranks(0)->set_oldest_wait_ms(20'000);
  hosts.observer.take(1, beat);
  CHECK(hosts.observer.counters_of(3).has_value());
  CHECK_FALSE(hosts.observer.counters_of(2).has_value());
  hosts.later(std::chrono::seconds(2));
  REQUIRE(hosts.sent.size() == 2);
  const auto answer = [&] {
    const uint64_t round = hosts.round();
    const auto one = [&](int host, uint64_t member, int rank, bool last, double waits) {
      control::Observed message = view(round, rank, last, waits);
      message.set_member(member);
      hosts.observer.take(host, message);
    };
    one(0, 0, 0, false, 20);
    one(0, 1, 1, false, 20);
    one(0, 7, 3, true, 0);
    one(1, 2, 2, false, 0);  // of whom nobody speaks any more
    one(1, 3, 2, true, 20);
  };
  answer();
  hosts.later(std::chrono::milliseconds(10));
  answer();
  const auto lines = hosts.later(std::chrono::milliseconds(10));
  CHECK(has(lines, "in: ranks 0-2"));
  CHECK(has(lines, "not in: rank 3 (pid 1003)"));
}

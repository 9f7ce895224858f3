// Real scripts that find hosts: slow, hanging, huge, failing, removed. Nothing of them stays.
#include "launcher/processes/discovery.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>

namespace rueda::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using Hosts = std::vector<HostSlots>;

// A folder of scripts.
class Scripts {
 public:
  Scripts() {
    std::string path =
        (std::filesystem::temp_directory_path() / "test-of-rueda-discovery-XXXXXX").string();
    REQUIRE(mkdtemp(path.data()) != nullptr);
    folder_ = path;
  }
  ~Scripts() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text, bool executable = true) {
    std::ofstream(path(name) + ".new") << text;
    chmod((path(name) + ".new").c_str(), executable ? 0700 : 0600);
    std::filesystem::rename(path(name) + ".new", path(name));
    return path(name);
  }

 private:
  std::filesystem::path folder_;
};

DiscoveryPlan plan_of(const std::string& script) {
  DiscoveryPlan plan;
  plan.script = script;
  plan.environment = {"PATH=/usr/local/bin:/usr/bin:/bin"};
  plan.interval = std::chrono::duration<double>(0.001);
  plan.limit = std::chrono::duration<double>(60);
  return plan;
}

// Goes round as a poll loop does, until `done`; false after a minute.
bool turn(Discovery* discovery, const std::function<bool(std::optional<Hosts>)>& done) {
  const auto over = Clock::now() + std::chrono::seconds(60);
  while (Clock::now() < over) {
    if (done(discovery->work(Clock::now()))) return true;
    std::vector<pollfd> fds;
    discovery->add_to_poll(&fds);
    const auto left = std::min(discovery->next_deadline(), over) - Clock::now();
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(wait, 0)));
  }
  return false;
}

std::string text_of(const Hosts& hosts) {
  std::string out;
  for (const HostSlots& host : hosts) out += host.host + "=" + std::to_string(host.slots) + " ";
  return out;
}

// The next answer, as text; or why the first run failed.
std::string next_answer(Discovery* discovery) {
  std::string out;
  const bool came = turn(discovery, [&](std::optional<Hosts> hosts) {
    if (hosts) out = text_of(*hosts);
    if (!discovery->failed().ok()) out = discovery->failed().message();
    return hosts.has_value() || !discovery->failed().ok();
  });
  return came ? out : "nothing for a minute";
}

std::string next_line(Discovery* discovery) {
  std::vector<std::string> lines;
  turn(discovery, [&](const std::optional<Hosts>&) {
    lines = discovery->take_said();
    return !lines.empty();
  });
  return lines.size() == 1 ? lines[0] : std::to_string(lines.size()) + " lines";
}

// A named pipe: scripts open it for writing on descriptor 9, and its end comes with their last.
struct Alive {
  std::string path;
  UniqueFd reading;

  explicit Alive(const Scripts& scripts) : path(scripts.path("alive")) {
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    reading.reset(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  }
  // Until somebody has written a byte.
  bool began() const {
    pollfd ready = {reading.get(), POLLIN, 0};
    char byte = 0;
    return poll(&ready, 1, 60'000) == 1 && read(reading.get(), &byte, 1) == 1;
  }
  // Nobody holds it any more.
  bool is_over() const {
    pollfd ends = {reading.get(), POLLIN, 0};
    return poll(&ends, 1, 60'000) == 1 && (ends.revents & POLLHUP) != 0;
  }
};

TEST_CASE("the answers of a script that works come when they change", "[discovery]") {
  Scripts scripts;
  Discovery discovery(plan_of(scripts.write("hosts", "#!/bin/sh\necho a:2\necho\necho b:1\n")));
  CHECK(next_answer(&discovery) == "a=2 b=1 ");
  scripts.write("hosts", "#!/bin/sh\necho a:2\n");
  CHECK(next_answer(&discovery) == "a=2 ");
  scripts.write("hosts", "#!/bin/sh\n:\n");
  CHECK(next_answer(&discovery) == "");
  CHECK(discovery.failed().ok());
  CHECK(discovery.take_said().empty());
}

TEST_CASE("a script needs no interpreter line, and words are the shell's", "[discovery]") {
  Scripts scripts;
  Discovery bare(plan_of(scripts.write("a script", "echo a:$((1 + 1))\n")));
  CHECK(next_answer(&bare) == "a=2 ");
  Discovery words(plan_of("for i in 1 2; do echo h$i; done"));
  CHECK(next_answer(&words).find("line 1: 'h1' has no number of slots") != std::string::npos);
  DiscoveryPlan plan = plan_of("for i in 1 2; do echo h$i; done");
  plan.slots_per_host = 3;
  Discovery with_slots(plan);
  CHECK(next_answer(&with_slots) == "h1=3 h2=3 ");
}

TEST_CASE("the first failure of a script is final and says why", "[discovery]") {
  Scripts scripts;
  const auto first = [](const DiscoveryPlan& plan) {
    Discovery discovery(plan);
    std::string said = next_answer(&discovery);
    CHECK(discovery.next_deadline() == Discovery::TimePoint::max());
    CHECK_FALSE(discovery.work(Clock::now() + std::chrono::hours(1)).has_value());
    return said.substr(said.find("': ") + 3);
  };
  const std::string path =
      scripts.write("hosts", "#!/bin/sh\necho a:1\necho one >&2\necho no cluster >&2\nexit 3\n");
  CHECK(first(plan_of(path)) == "it failed: exited with code 3: no cluster");
  CHECK(first(plan_of("kill -9 $$")).find("killed by signal 9") != std::string::npos);
  CHECK(first(plan_of(scripts.write("odd", "#!/no/such/interpreter\n"))).find("does not exist") !=
        std::string::npos);
  CHECK(first(plan_of("echo a:1; echo b:two")) ==
        "what it has printed is refused: line 2: 'two' is no number of slots, 0 to 65536");
}

TEST_CASE("after a good answer a failing script is only talked about, once", "[discovery]") {
  Scripts scripts;
  const std::string path = scripts.write("hosts", "#!/bin/sh\necho a:1\n");
  Discovery discovery(plan_of(path));
  CHECK(next_answer(&discovery) == "a=1 ");
  scripts.write("hosts", "#!/bin/sh\necho run >> \"$0.runs\"\nexit 4\n");
  CHECK(next_line(&discovery) == "--host-discovery-script '" + path +
                                     "': it failed: exited with code 4; the hosts that it found "
                                     "before stay");
  const auto runs = [&] {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path + ".runs", error);
    return error ? 0 : bytes / 4;
  };
  const auto before = runs();
  CHECK(turn(&discovery, [&](const std::optional<Hosts>& hosts) {
    CHECK_FALSE(hosts.has_value());
    return runs() > before + 3;
  }));
  CHECK(discovery.take_said().empty());
  scripts.write("hosts", "#!/bin/sh\necho a:1\necho b:1:1\n");
  CHECK(next_line(&discovery).find("line 2: expected host:slots, found 'b:1:1'") !=
        std::string::npos);
  std::filesystem::remove(path);
  CHECK(next_line(&discovery).find("does not exist") != std::string::npos);
  scripts.write("hosts", "#!/bin/sh\necho c:2\n");
  CHECK(next_answer(&discovery) == "c=2 ");
  CHECK(discovery.failed().ok());
}

TEST_CASE("a script that is slow blocks nobody", "[discovery]") {
  Scripts scripts;
  REQUIRE(mkfifo(scripts.path("gate").c_str(), 0600) == 0);
  Discovery discovery(plan_of(
      scripts.write("hosts", "#!/bin/sh\nread line < \"$(dirname $0)/gate\"\necho $line\n")));
  for (int round = 0; round < 1000; ++round) CHECK_FALSE(discovery.work(Clock::now()).has_value());
  std::ofstream(scripts.path("gate")) << "late:4\n";
  CHECK(next_answer(&discovery) == "late=4 ");
}

TEST_CASE("a script that hangs is ended with all that it has started", "[discovery]") {
  Scripts scripts;
  const Alive alive(scripts);
  Discovery discovery(plan_of(
      scripts.write("hosts",
                    "#!/bin/sh\nexec 9> \"$(dirname $0)/alive\"\n"
                    "(trap '' TERM; (echo >&9; sleep 1000) & sleep 1000) &\nsleep 1000\n")));
  const auto begin = Clock::now();
  CHECK_FALSE(discovery.work(begin).has_value());
  CHECK(alive.began());
  CHECK_FALSE(discovery.work(begin + std::chrono::seconds(59)).has_value());
  CHECK(discovery.failed().ok());
  CHECK(discovery.next_deadline() == begin + std::chrono::seconds(60));
  CHECK_FALSE(discovery.work(begin + std::chrono::seconds(60)).has_value());
  CHECK(discovery.failed().message().find("': it was ended after 60 s") != std::string::npos);
  CHECK(alive.is_over());
}

TEST_CASE("what a script leaves running ends with it, and holds nothing up", "[discovery]") {
  Scripts scripts;
  const Alive alive(scripts);
  Discovery discovery(plan_of(scripts.write(
      "hosts", "#!/bin/sh\nexec 9> \"$(dirname $0)/alive\"\nsleep 1000 &\necho a:1\necho >&9\n")));
  CHECK(next_answer(&discovery) == "a=1 ");
  CHECK(alive.began());
  CHECK(alive.is_over());
}

TEST_CASE("a script that runs ends with who runs it", "[discovery]") {
  Scripts scripts;
  const Alive alive(scripts);
  {
    Discovery discovery(
        plan_of(scripts.write("hosts",
                              "#!/bin/sh\nexec 9> \"$(dirname $0)/alive\"\necho >&9\n"
                              "sleep 1000 & wait\n")));
    discovery.work(Clock::now());
    CHECK(alive.began());
  }
  CHECK(alive.is_over());
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("a script that prints without end is ended, and its errors do not stop it",
          "[discovery]") {
  Scripts scripts;
  Discovery huge(
      plan_of("while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:1; done"));
  CHECK(next_answer(&huge).find("it has printed more than 1 MiB") != std::string::npos);
  Discovery talks(plan_of("yes 2>/dev/null | head -c 3000000 >&2; echo a:1"));
  CHECK(next_answer(&talks) == "a=1 ");
}

TEST_CASE("an owner that reaps its children tells of the script's end", "[discovery]") {
  Discovery discovery(plan_of("echo a:1"));
  std::string answer;
  CHECK(turn(&discovery, [&](const std::optional<Hosts>& hosts) {
    if (hosts) answer = text_of(*hosts);
    int status = 0;
    const pid_t pid = hosts ? 0 : waitpid(-1, &status, WNOHANG);
    if (pid > 0) CHECK(discovery.ended(pid, status));
    return hosts.has_value();
  }));
  CHECK(answer == "a=1 ");
  CHECK_FALSE(discovery.ended(getpid(), 0));
}

TEST_CASE("what is no script is refused before a job starts", "[discovery]") {
  Scripts scripts;
  const char* const search = "/usr/bin:/bin";
  const auto refusal = [&](const std::string& script) {
    const std::string said = check_discovery_script(script, search).message();
    return said.empty() ? said : said.substr(said.find("': ") + 3);
  };
  CHECK(refusal(scripts.write("good", "echo a:1\n")) == "");
  CHECK(refusal(scripts.write("with space", "echo a:1\n")) == "");
  CHECK(refusal(scripts.path("good") + " --fast") == "");
  CHECK(refusal("cat") == "");
  CHECK(refusal("echo a:1") == "");
  CHECK(refusal(scripts.path("absent")) == "there is no such file");
  CHECK(refusal(scripts.path("absent") + " --fast") == "there is no such file");
  CHECK(refusal("no-such-command") == "there is no such file, and no such command");
  CHECK(refusal(scripts.write("plain", "echo a:1\n", false)) ==
        "it is not executable; chmod +x makes it so");
  CHECK(refusal(scripts.path("")) == "it is no file");
}

}  // namespace
}  // namespace rueda::launcher

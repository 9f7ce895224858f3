// ruedarun from outside, when all goes well: what it prints, what ranks are given, what it refuses.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "tests/launcher/job.h"
#include "tests/support/built.h"
#include "tests/support/folder.h"

using rueda::UniqueFd;
using rueda::testing::Job;
using Lines = std::vector<std::string>;

namespace {

std::string sorted_out(const Job& job) {
  Lines lines = job.out_lines();
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Every rank writes 1000 numbered lines of 300 characters to both streams.
constexpr const char* kTalk =
    "pad=$(printf '%0280d' 0); i=0; while [ $i -lt 1000 ]; do"
    " echo \"$RANK out $i $pad\"; echo \"$RANK err $i $pad\" >&2; i=$((i+1)); done";

// Checks that each rank's lines are whole and in their order; returns how many there were.
int check_talk(const Lines& lines) {
  const std::string pad(280, '0');
  std::map<std::string, int> next;
  for (const std::string& line : lines) {
    const std::string rank = line.substr(1, 1);
    const bool out = line.find("]<stdout>: ") == 2;
    const std::string stream = out ? "stdout" : "stderr";
    const int number = next[rank + stream]++;
    const std::string expected = "[" + rank + "]<" + stream + ">: " + rank +
                                 (out ? " out " : " err ") + std::to_string(number) + " " + pad;
    if (line != expected) {
      CHECK(line == expected);
      return -1;
    }
  }
  return static_cast<int>(lines.size());
}

// A folder of its own, gone at the end.
class ScratchFolder {
 public:
  ScratchFolder() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/ruedarun_test.XXXXXX";
};

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("lines of four ranks are whole and carry their rank", "[ruedarun]") {
  Job job({"-np", "4", "sh", "-c", kTalk});
  REQUIRE(job.wait() == 0);
  CHECK(check_talk(job.out_lines()) == 4000);
  CHECK(check_talk(job.err_lines()) == 4000);
}

TEST_CASE("lines stay whole when both streams go to one pipe", "[ruedarun]") {
  Job::Setup setup;
  setup.errors_with_output = true;
  Job job({"-np", "4", "sh", "-c", kTalk}, setup);
  REQUIRE(job.wait() == 0);
  CHECK(check_talk(job.out_lines()) == 8000);
}

TEST_CASE("an unfinished last line is printed, with its rank and an end", "[ruedarun]") {
  Job job({"-np", "2", "sh", "-c", "printf 'last of %s' $RANK"});
  CHECK(job.wait() == 0);
  CHECK(sorted_out(job) == "[0]<stdout>: last of 0\n[1]<stdout>: last of 1\n");
  Job plain({"-np", "1", "--no-prefix", "printf", "bare"});
  CHECK(plain.wait() == 0);
  CHECK(plain.out() == "bare\n");
}

TEST_CASE("the time stands before every line when it is asked for", "[ruedarun]") {
  Job job({"-np", "2", "--prefix-timestamp", "sh", "-c", "echo one; echo two >&2"});
  CHECK(job.wait() == 0);
  const std::string time = R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} )";
  CHECK(job.out_lines().size() == 2);
  for (const std::string& line : job.out_lines())
    CHECK(std::regex_match(line, std::regex(time + R"(\[[01]\]<stdout>: one)")));
  CHECK(job.err_lines().size() == 2);
  for (const std::string& line : job.err_lines())
    CHECK(std::regex_match(line, std::regex(time + R"(\[[01]\]<stderr>: two)")));
}

TEST_CASE("a copy of each rank's output is what the rank wrote, byte for byte", "[ruedarun]") {
  const ScratchFolder scratch;
  const std::string folder = scratch.path() + "/not/yet/there";
  const Lines words = {"-np", "11", "--output-filename", folder, "sh", "-c"};
  Lines first = words, second = words;
  first.push_back("printf '10%%\\r20%%\\r%s' $RANK; yes error | head -n 30000 >&2");
  second.push_back("echo again");
  Job job(first);
  REQUIRE(job.wait() == 0);
  CHECK(job.out_lines().size() == 11);  // on the console too
  for (int rank = 0; rank < 11; ++rank) {
    const std::string number = (rank < 10 ? "0" : "") + std::to_string(rank);
    CHECK(content(folder + "/rank." + number + "/stdout") == "10%\r20%\r" + std::to_string(rank));
    CHECK(content(folder + "/rank." + number + "/stderr").size() == 30000 * 6);
  }
  CHECK(Job(second).wait() == 0);  // overwrites
  CHECK(content(folder + "/rank.07/stdout") == "again\n");
  CHECK(content(folder + "/rank.07/stderr").empty());
}

TEST_CASE("a copy that cannot be written is said, and does not end the job", "[ruedarun]") {
  const ScratchFolder scratch;
  Job refused({"-np", "1", "--output-filename", "/dev/null/x", "echo", "started"});
  CHECK(refused.wait() == 70);
  CHECK(refused.err() == "ruedarun: cannot make the folder /dev/null/x/rank.0: Not a directory\n");
  CHECK(refused.out().empty());

  std::filesystem::create_directory(scratch.path() + "/rank.0");
  std::filesystem::create_symlink("/dev/full", scratch.path() + "/rank.0/stdout");
  Job full({"-np", "1", "--output-filename", scratch.path(), "printf", "a\\nb\\n"});  // one write
  CHECK(full.wait() == 0);
  CHECK(full.out() == "[0]<stdout>: a\n[0]<stdout>: b\n");
  CHECK_THAT(full.err(),
             Catch::StartsWith("ruedarun: the copy of the output ends here: "
                               "cannot write " +
                               scratch.path() + "/rank.0/stdout") &&
                 Catch::Contains(": No space left on device; 4 bytes were to be written"));
  CHECK(full.err_lines().size() == 1);
}

TEST_CASE("a rank is told its place, and arguments and -x arrive untouched", "[ruedarun]") {
  Job job(
      {"-np", "2", "-H", "localhost:2", "-x", "GREETING=good day", "sh", "-c",
       "echo $RUEDA_RANK/$RUEDA_SIZE $RUEDA_LOCAL_RANK/$RUEDA_LOCAL_SIZE "
       "$RUEDA_CROSS_RANK/$RUEDA_CROSS_SIZE $RANK/$WORLD_SIZE $HOROVOD_RANK \"$GREETING\" \"$1\"",
       "sh", "-np  x"});
  CHECK(job.wait() == 0);
  CHECK(sorted_out(job) ==
        "[0]<stdout>: 0/2 0/2 0/1 0/2 0 good day -np  x\n"
        "[1]<stdout>: 1/2 1/2 0/1 1/2 1 good day -np  x\n");
}

TEST_CASE("a rank leads a session and a process group, with default signals", "[ruedarun]") {
  Job job(
      {"-np", "2", "sh", "-c",
       "read -r pid comm state ppid group session rest < /proc/$$/stat;"
       "[ $group = $$ ] && [ $session = $$ ] && exec grep -E '^Sig(Blk|Ign):' /proc/self/status"});
  CHECK(job.wait() == 0);
  for (const std::string& line : job.out_lines())
    CHECK_THAT(line, Catch::EndsWith("0000000000000000"));
  CHECK(job.out_lines().size() == 4);
}

TEST_CASE("ranks hold the job's key in a sealed descriptor and nowhere else", "[ruedarun]") {
  Job job({"-np", "2", built::kTestRank, "key"});
  CHECK(job.wait() == 0);
  CHECK(sorted_out(job) ==
        "[0]<stdout>: 32 bytes, sealed, agent is a socket, hidden, nothing else open\n"
        "[1]<stdout>: 32 bytes, sealed, agent is a socket, hidden, nothing else open\n");
}

TEST_CASE("--ranks prints some ranks' lines and reports of all", "[ruedarun]") {
  Job job({"-np", "4", "--ranks", "0,2-2", "sh", "-c",
           "echo $RANK; if [ $RANK = 3 ]; then echo why >&2; exit 3; fi"});
  CHECK(job.wait() == 3);
  CHECK(sorted_out(job) == "[0]<stdout>: 0\n[2]<stdout>: 2\n");
  CHECK_THAT(job.err(), Catch::Contains("its last words: why"));
  CHECK_THAT(job.err(), !Catch::Contains("[3]<stderr>"));
  for (const char* wrong : {"x", "1-", "-1", "2-1", "1,,2", "1,"}) {
    INFO(wrong);
    Job refused({"-np", "2", "--ranks", wrong, "true"});
    CHECK(refused.wait() == 2);
    CHECK_THAT(refused.err(),
               Catch::Contains("expected ranks as in 0,3-5") || Catch::Contains("--ranks"));
  }
}

TEST_CASE("ranks meet at the store that the agent hosts", "[ruedarun]") {
  Job job({"-np", "3", built::kTestRank, "meet"});
  CHECK(job.wait_for_output("met", 3));
  kill(job.pid(), SIGTERM);
  CHECK(job.wait() == 143);
  CHECK(sorted_out(job) ==
        "[0]<stdout>: met 0 1 2\n[1]<stdout>: met 0 1 2\n[2]<stdout>: met 0 1 2\n");
}

TEST_CASE("standard input reaches nobody, or the rank that is asked for", "[ruedarun]") {
  Job::Setup setup;
  setup.input = "typed\n";
  const Lines script = {"sh", "-c", "read -r word; echo \"$RANK:$word\""};
  Lines words = {"-np", "2"};
  words.insert(words.end(), script.begin(), script.end());
  Job nobody(words, setup);
  CHECK(nobody.wait() == 0);
  CHECK(sorted_out(nobody) == "[0]<stdout>: 0:\n[1]<stdout>: 1:\n");
  words.insert(words.begin(), {"--stdin", "1"});
  Job one(words, setup);
  CHECK(one.wait() == 0);
  CHECK(sorted_out(one) == "[0]<stdout>: 0:\n[1]<stdout>: 1:typed\n");
}

TEST_CASE("a job inside a rank is a job of its own", "[ruedarun]") {
  Job job({"-np", "2", built::kRuedarun, "-np", "2", "--no-prefix", "sh", "-c",
           "echo $RUEDA_RANK/$RUEDA_SIZE $RANK/$WORLD_SIZE"});
  CHECK(job.wait() == 0);
  CHECK(sorted_out(job) ==
        "[0]<stdout>: 0/2 0/2\n[0]<stdout>: 1/2 1/2\n[1]<stdout>: 0/2 0/2\n[1]<stdout>: 1/2 1/2\n");
  Job inner({"-np", "1", built::kRuedarun, "-np", "1", "--no-prefix", built::kTestRank, "key"});
  CHECK(inner.wait() == 0);
  CHECK(inner.out() ==
        "[0]<stdout>: 32 bytes, sealed, agent is a socket, hidden, nothing else open\n");
}

TEST_CASE("sixty-four ranks come and go", "[ruedarun]") {
  Job job({"-np", "64", "true"});
  CHECK(job.wait() == 0);
  CHECK(job.out().empty());
  CHECK(job.err().empty());
  CHECK(job.wait_until_gone());
}

TEST_CASE("a terminal gets the short prefix, coloured unless NO_COLOR is set", "[ruedarun]") {
  for (const bool colour : {true, false}) {
    const UniqueFd master(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    REQUIRE(master.valid());
    REQUIRE(grantpt(master.get()) == 0);
    REQUIRE(unlockpt(master.get()) == 0);
    UniqueFd terminal(open(ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    REQUIRE(terminal.valid());
    Job::Setup setup;
    setup.terminal = terminal.get();
    if (!colour) setup.environment = {"NO_COLOR=1"};
    Job job({"-np", "1", "echo", "hello"}, setup);
    CHECK(job.wait() == 0);
    char bytes[256] = {};
    REQUIRE(read(master.get(), bytes, sizeof(bytes) - 1) > 0);
    const std::string said = bytes;
    CHECK(said.starts_with("ruedarun: 1 rank on this host, "));
    CHECK(said.substr(std::min(said.find('\n'), said.size() - 1) + 1) ==
          (colour ? "\x1b[36m0│\x1b[0m hello\r\n" : "0│ hello\r\n"));
  }
}

TEST_CASE("what cannot be started is refused before anything is", "[ruedarun]") {
  char file[] = "/tmp/ruedarun_test.XXXXXX";
  const UniqueFd fd(mkstemp(file));
  struct Row {
    Lines words;
    int code;
    std::string reason;
  };
  const std::vector<Row> table = {
      {{}, 2, "number of ranks is missing"},
      {{"-np", "2"}, 2, "command is missing"},
      {{"-np", "2", "--bogus", "true"}, 2, "unknown option '--bogus'"},
      {{"-np", "2", "-H", "else where:2", "true"}, 2, "'else where' is no name of a host"},
      {{"-np", "2", "-H", "localhost:1", "true"}, 2, "needs 2 slots"},
      {{"-np", "2", "-H", file, "true"}, 2, "is a file"},
      {{"-np", "2", "--log-level", "loud", "true"}, 2, "RUEDA_LOG_LEVEL"},
      {{"-np", "2", "--config-file", "/no/such/file", "true"},
       2,
       "cannot read the configuration file"},
      {{"-np", "2", "no-such-command-at-all"}, 127, "'no-such-command-at-all' not found"},
      {{"-np", "2", "/no/such/file"}, 127, "not found"},
      {{"-np", "2", file}, 126, "not an executable file"},
      {{"-np", "2", "/"}, 126, "not an executable file"},
  };
  for (const Row& row : table) {
    INFO(row.reason);
    Job job(row.words);
    CHECK(job.wait() == row.code);
    CHECK_THAT(job.err(), Catch::Contains(row.reason));
    CHECK(job.out().empty());
  }
  unlink(file);
}

TEST_CASE("questions are answered on stdout without starting ranks", "[ruedarun]") {
  const std::vector<std::pair<Lines, std::string>> table = {
      {{"--version"}, "0."},
      {{"--help"}, "--grace-period"},
      {{"-cb"}, "[X] shared memory"},
      {{"--check-build"}, "] MPI (--mpi)"},
      {{"--print-config", "--log-level", "debug"}, "--log-level"},
  };
  for (const auto& [words, text] : table) {
    Job job(words);
    CHECK(job.wait() == 0);
    CHECK_THAT(job.out(), Catch::Contains(text));
    CHECK(job.err().empty());
  }
  const rueda::testing::Folder folder;
  folder.write("c.yaml", "params:\n  cache_capacity: 7\n  cycle_time_ms: 5\n");
  Job from_file({"--config-file", folder.file("c.yaml"), "--print-config"});
  CHECK(from_file.wait() == 0);
  CHECK_THAT(from_file.out(),
             Catch::Contains("params.cache_capacity (" + folder.file("c.yaml") + ":2)"));
  CHECK_THAT(from_file.err(), Catch::Contains("ruedarun: note: params.cycle_time_ms (") &&
                                  Catch::Contains(" has no effect: rueda has no cycle"));
  const std::string rueda = built::kRuedaTool;
  Job::Setup tool;
  tool.program = rueda;
  Job doctor({"doctor"}, tool);
  CHECK(doctor.wait() == 0);
  CHECK_THAT(doctor.out(), Catch::Contains("open files"));
  // With few descriptors no job can start, and the exit code says so.
  Job::Setup poor;
  poor.program = "/bin/sh";
  Job poorly({"-c", "ulimit -n 32; exec " + rueda + " doctor"}, poor);
  CHECK(poorly.wait() == 1);
  CHECK_THAT(poorly.out(), Catch::Contains("blocker: open files (32"));
  Job merged({"-c", rueda + " doctor --json | " + rueda + " doctor --merge -"}, poor);
  CHECK(merged.wait() == 0);
  CHECK_THAT(merged.out(), Catch::Contains("rueda doctor on 1 hosts"));
  Job nonsense({"-c", "echo hello | " + rueda + " doctor --merge -"}, poor);
  CHECK(nonsense.wait() == 2);
  Job wrong({"docter"}, tool);
  CHECK(wrong.wait() == 2);
}

// What the doctor says about machines that are not at hand.
#include <catch2/catch.hpp>

#include <algorithm>

#include "launcher/tools/doctor/findings.h"
#include "tests/support/json_reader.h"

namespace rueda::testing {
namespace {

using doctor::Finding;
using doctor::Level;
using doctor::Machine;
using doctor::Report;

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

Machine sound() {
  Machine machine;
  machine.version = "1.2.3";
  machine.host = "node1";
  machine.kernel = "Linux 6.1";
  machine.reads_peers = true;
  machine.interfaces = {{"lo", "127.0.0.1", true, true}, {"eth0", "10.0.0.1", false, true}};
  machine.name_addresses = {"10.0.0.1"};
  machine.clock_synchronised = true;
  machine.clock_source = "tsc";
  machine.open_files = machine.open_files_hard = 65536;
  machine.processes = machine.locked_bytes = ~uint64_t{0};
  machine.shm_bytes = machine.shm_free_bytes = 8 * kGiB;
  machine.temporary_free_bytes = kGiB;
  machine.memory_bytes = 64 * kGiB;
  machine.available_bytes = 60 * kGiB;
  machine.cpu_model = "a processor";
  machine.cpu_features = {"avx2"};
  machine.cores_usable = machine.cores_online = machine.cores_physical = 8;
  machine.numa_nodes = 1;
  machine.library = "/usr/lib/librueda.so";
  machine.frameworks = {{true, "Python", "/usr/bin/python3 3.11"}};
  return machine;
}

Finding named(const Report& report, const std::string& name) {
  const auto found = std::find_if(report.findings.begin(), report.findings.end(),
                                  [&](const Finding& finding) { return finding.name == name; });
  if (found != report.findings.end()) return *found;
  return {"", "", "not found", Level::kFine, "", false};
}

TEST_CASE("a sound machine has nothing to be told about", "[doctor]") {
  const Report report = doctor::examine(sound());
  INFO(doctor::as_text(report));
  CHECK(doctor::worst(report.findings) == Level::kFine);
  CHECK(doctor::as_text(report).find("What to do") == std::string::npos);
}

TEST_CASE("each trouble is found, weighed, and comes with something to do", "[doctor]") {
  struct Row {
    const char* finding;
    Level level;
    void (*spoil)(Machine*);
    const char* advice;
  };
  const Row rows[] = {
      {"shared memory files", Level::kBlocker, [](Machine* m) { m->memory_file_error = 1; },
       "seccomp"},
      {"TCP on loopback", Level::kBlocker, [](Machine* m) { m->tcp_error = 99; },
       "ip link set lo up"},
      {"librueda", Level::kBlocker, [](Machine* m) { m->library_error = "GLIBC_2.99"; }, "glibc"},
      {"librueda", Level::kProblem, [](Machine* m) { m->library = ""; }, "RUEDA_LIBRARY"},
      {"reading a peer's memory", Level::kNote, [](Machine* m) { m->reads_peers = false; },
       "PTRACE"},
      {"other hosts", Level::kNote, [](Machine* m) { m->interfaces.pop_back(); }, "network"},
      {"name node1", Level::kNote, [](Machine* m) { m->name_addresses = {"127.0.1.1"}; },
       "/etc/hosts"},
      {"name node1", Level::kNote, [](Machine* m) { m->name_addresses = {}; }, "/etc/hosts"},
      {"clock", Level::kNote, [](Machine* m) { m->clock_synchronised = false; }, "chrony"},
      {"open files", Level::kNote, [](Machine* m) { m->open_files = 1024; }, "128 ranks"},
      {"open files", Level::kProblem, [](Machine* m) { m->open_files = 100; }, "ulimit -n"},
      {"open files", Level::kBlocker, [](Machine* m) { m->open_files = 20; }, "ulimit -n"},
      {"locked memory", Level::kNote, [](Machine* m) { m->locked_bytes = 64 << 10; }, "memlock"},
      {"/dev/shm", Level::kNote, [](Machine* m) { m->shm_bytes = 64 * kMiB; }, "--shm-size"},
      {"memory", Level::kProblem, [](Machine* m) { m->available_bytes = 100 * kMiB; }, "ps aux"},
      {"memory of this container or group", Level::kProblem,
       [](Machine* m) {
         m->group_memory_bytes = kGiB;
         m->group_used_bytes = kGiB - kMiB;
       },
       "raise"},
      {"overcommit", Level::kProblem, [](Machine* m) { m->strict_overcommit = true; },
       "RUEDA_HEAP_BYTES"},
      {"core quota", Level::kNote, [](Machine* m) { m->group_cores = 1.5; }, "quota"},
      {"GPU", Level::kProblem, [](Machine* m) { m->gpu_devices = 2; }, "--gpus all"},
  };
  for (const Row& row : rows) {
    Machine machine = sound();
    row.spoil(&machine);
    const Report report = doctor::examine(machine);
    const Finding finding = named(report, row.finding);
    CAPTURE(row.finding, finding.value, finding.advice);
    CHECK(finding.level == row.level);
    CHECK(finding.advice.find(row.advice) != std::string::npos);
    CHECK(doctor::worst(report.findings) == row.level);
    CHECK(doctor::as_text(report).find(finding.advice) != std::string::npos);
  }
}

TEST_CASE("where there are GPUs, whether MPS is running", "[doctor]") {
  Machine machine = sound();
  machine.gpu_devices = machine.gpus_usable = 2;
  CHECK(named(doctor::examine(machine), "MPS").value.starts_with("not running"));
  machine.mps = true;
  CHECK(named(doctor::examine(machine), "MPS").value.starts_with("running"));
  CHECK(doctor::worst(doctor::examine(machine).findings) ==
        doctor::worst(doctor::examine(sound()).findings));
}

TEST_CASE("JSON holds the whole report and comes back", "[doctor]") {
  Machine machine = sound();
  machine.cpu_model = "quote \" backslash \\ newline \n tab \t";
  machine.open_files = 20;
  const Report report = doctor::examine(machine);
  const std::string text = doctor::as_json(report);
  CHECK(JsonReader(text).whole());
  CHECK(text.find('\n') == std::string::npos);
  const auto back = doctor::from_json(text + "\n");
  REQUIRE(back.ok());
  CHECK(doctor::as_json(back.value()) == text);
  for (size_t length = 0; length < text.size(); ++length)
    CHECK_FALSE(doctor::from_json(text.substr(0, length)).ok());
  CHECK_FALSE(doctor::from_json(text + "x").ok());
}

TEST_CASE("hosts that differ in what they should share are told apart", "[doctor]") {
  Machine other = sound();
  other.host = "node2";
  CHECK(doctor::compare({doctor::examine(sound()), doctor::examine(other)}).empty());
  other.cpu_model = "another processor";
  auto found = doctor::compare({doctor::examine(sound()), doctor::examine(other)});
  REQUIRE(found.size() == 1);
  CHECK(found[0].value.find("another processor on node2") != std::string::npos);
  CHECK(found[0].level == Level::kNote);
  other = sound();
  other.host = "node2";
  other.version = "1.2.4";
  found = doctor::compare({doctor::examine(sound()), doctor::examine(other)});
  REQUIRE(found.size() == 1);
  CHECK(found[0].level == Level::kBlocker);
  const std::string text =
      doctor::as_text({doctor::examine(sound()), doctor::examine(other)}, found);
  CHECK(text.find("1.2.4 on node2") != std::string::npos);
  CHECK(text.find("No job can start") != std::string::npos);
}

}  // namespace
}  // namespace rueda::testing

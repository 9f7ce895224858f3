// What tests of elastic jobs share: command lines whose ranks are elastic_rank.cc, a folder with
// the scripts that find hosts and start agents, and words that are looked for in what a job says.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/launcher/job.h"
#include "tests/support/built.h"

namespace rueda::testing {

using Words = std::vector<std::string>;

// "there" starts agents, all on this machine: it is told a host's name and forgets it. "discover"
// prints the hosts of the moment.
class HostsFolder {
 public:
  HostsFolder() {
    static int next = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("elastic-hosts-" + std::to_string(getpid()) + "-" + std::to_string(next++));
    std::filesystem::create_directories(path_);
    write("there", "#!/bin/sh\nshift\nexec \"$@\"\n");
    write("discover", "#!/bin/sh\ncat " + (path_ / "hosts").string() + "\n");
    hosts_are("");
  }
  ~HostsFolder() { std::filesystem::remove_all(path_); }
  HostsFolder(const HostsFolder&) = delete;
  HostsFolder& operator=(const HostsFolder&) = delete;
  std::string file(const std::string& name) const { return path_ / name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    chmod(file(name).c_str(), 0700);
  }
  // What the discovery script prints from now on.
  void hosts_are(const std::string& text) const {
    std::ofstream(file("next")) << text;
    std::filesystem::rename(file("next"), file("hosts"));
  }

 private:
  std::filesystem::path path_;
};

// `flags`: of ruedarun. `actions`: of the ranks.
inline Words command(const Words& flags, const Words& actions) {
  Words all = flags;
  all.push_back(built::kElasticRank);
  all.insert(all.end(), actions.begin(), actions.end());
  return all;
}

// Over hosts that are started by the folder's script.
inline Words command(const HostsFolder& folder, const Words& flags, const Words& actions) {
  Words all = {"--rsh-agent", folder.file("there"), "--verbose"};
  all.insert(all.end(), flags.begin(), flags.end());
  return command(all, actions);
}

// Looks for hosts often, and waits for ranks no longer than this.
inline Job::Setup quick(const std::string& elastic_timeout) {
  return {{"RUEDA_DISCOVERY_INTERVAL=0.05", "RUEDA_ELASTIC_TIMEOUT=" + elastic_timeout}};
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// The number that follows `before` first.
inline int number_after(const std::string& text, const std::string& before) {
  const size_t at = text.find(before);
  return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + before.size());
}

inline pid_t agent_of(const Job& job, const std::string& host) {
  return number_after(job.err(), "host " + host + " is here: agent pid ");
}

// What ruedarun says of it may have been read by half.
inline pid_t pid_of_member(const Job& job, int member) {
  const std::string variable = "RUEDA_MEMBER=" + std::to_string(member);
  pid_t found = -1;
  REQUIRE(eventually([&] {
    for (const pid_t pid : job.processes()) {
      std::ifstream environment("/proc/" + std::to_string(pid) + "/environ");
      for (std::string entry; std::getline(environment, entry, '\0');) {
        if (entry == variable) found = pid;
      }
    }
    return found > 0;
  }));
  return found;
}

inline void wait_for(Job* job, const std::string& text, int times = 1) {
  if (!job->wait_for_output(text, times))
    FAIL("no '" << text << "' in\n" << job->out() << job->err());
}

struct Answer {
  int code = -1;
  std::string out, err;
};

// `rueda COMMAND` of this job and no other, with one word more if there is one.
inline Job asking(Job* job, const std::string& command, const std::string& more = "") {
  const std::string before = "job ";
  const size_t at = job->err().find(before);
  REQUIRE(at != std::string::npos);
  Job::Setup setup;
  setup.program = built::kRuedaTool;
  Words words = {command, job->err().substr(at + before.size(), 16)};
  if (!more.empty()) words.push_back(more);
  return Job(words, setup);
}

inline Answer ask(Job* job, const std::string& command, const std::string& more = "") {
  Job tool = asking(job, command, more);
  const int code = tool.wait();
  return {code, tool.out(), tool.err()};
}

}  // namespace rueda::testing

// What tests of elastic jobs share: command lines whose ranks are elastic_rank.cc, and words that
// are looked for in what a job says.
#pragma once

#include <sys/types.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/launcher/hosts_folder.h"
#include "tests/launcher/job.h"
#include "tests/support/built.h"

namespace rueda::testing {

using Words = std::vector<std::string>;

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

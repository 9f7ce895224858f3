// The verdict on a job that has ended: exit code and last lines.
//
// The first rank to fail decides. A rank that told the store why it fails (it noticed somebody
// else's end) comes after every rank that blamed nobody, whoever ended first: an interpreter that
// leaves the job with an exception takes longer to end than the peer that raised because of it.
// Several deaths that were noticed together have no order of their own; then a rank that was killed
// comes before one that exited. Where the first to fail blames a rank that has left with code 0, or
// that never came, the headline names that one, and the exit code is of the one that failed. Where
// all ended with 0, but one had been lost inside of its command
// ("train; true") and others said so, the job has failed too; over several hosts this is not known.
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/base/types.h"
#include "launcher/job/member.h"
#include "launcher/job/supervisor.h"
#include "runtime/observe/life/life_page.h"

namespace rueda::launcher {

struct RankEnd {
  Rank rank = 0;
  int pid = 0;
  int wait_status = 0;         // of waitpid
  int noticed = 0;             // deaths noticed together have the same number
  bool stopped = false;        // ended after we had begun to stop the job
  std::string host = {};       // where it ran, in a job over several hosts
  std::string lost = {};       // not empty: it was not seen to end; why it is taken for dead
  std::string hint = {};       // why, as far as the kernel told: ", ... out of memory ..."
  uint64_t resident_peak = 0;  // bytes, of it or of a process that it waited for; 0: not known
  MemberId member = kNoMember;
  bool removed = false;  // was no part of the job any more: how it ended is nobody's failure
};

// Of an elastic job: what its controller has decided.
struct DecidedEnd {
  int exit_code = 0;
  std::string text = {};                 // why
  std::optional<MemberId> culprit = {};  // whose the exit code is; the only one of the ends then
  std::vector<std::string> losses = {};  // lines about ranks that were lost at last
};

struct JobEnd {
  std::vector<RankEnd> ends;
  std::optional<life::LostRank> lost;  // the first that ended without leaving the job
  bool lost_inside = false;  // it was another process than the one that was started as the rank
  StopCause cause = StopCause::kNone;
  int signal = 0;  // of the cause
  // What ranks said about their failure, in order.
  std::vector<std::pair<Rank, std::string>> reports;
  std::map<Rank, std::vector<std::string>> last_words;  // last lines of stderr
  std::optional<DecidedEnd> decided = {};
};

struct Verdict {
  int exit_code = 0;
  std::optional<Rank> culprit;
  std::vector<std::string>
      lines;  // without the "ruedarun: " in front; after success those of losses
};

Verdict judge(const JobEnd& job);

// "exited with code 3", "killed by signal 9 (SIGKILL)"
std::string describe_wait_status(int wait_status);
// "rank 3 (pid 4711) was killed by signal 9 (SIGKILL)": what the other ranks are told.
std::string describe_end(const RankEnd& end);
// 3, 137
int exit_code_of(int wait_status);
// "SIGKILL"
std::string signal_name(int signal);
// {0,1,2,5} -> "ranks 0-2, 5"; {4} -> "rank 4"
std::string name_ranks(std::vector<Rank> ranks);

}  // namespace rueda::launcher

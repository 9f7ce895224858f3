// One started rank as the agent holds it: its process group and its two output pipes.
//
// Owns the reading ends. The agent's thread only. The process itself is reaped by the agent, which
// tells it with ended().
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <utility>

#include "collectives/base/unique_fd.h"
#include "launcher/job/member.h"
#include "launcher/output/rank_output.h"

namespace rueda::launcher {

class RankProcess {
 public:
  // `output` takes what the rank writes. Borrowed.
  RankProcess(const MemberStart& start, OutputTaker* output) : start_(start), output_(output) {}

  // Takes over a process and the reading ends of its pipes (non-blocking).
  void started(pid_t pid, UniqueFd out, UniqueFd err);
  void ended() { running_ = false; }
  // To the whole process group; nothing after ended(), when the id may belong to somebody else.
  void signal(int signal) const;
  // To the process alone.
  void signal_process(int signal) const {
    if (running_) kill(pid_, signal);
  }

  const MemberStart& start() const { return start_; }
  MemberId member() const { return start_.member; }
  // That it was started for; its rank is that of its newest epoch.
  const RankPlace& place() const { return start_.place; }
  void be(Rank rank) {
    start_.place.rank = rank;
    in_epoch_ = true;
  }
  void leave_epoch() { in_epoch_ = false; }
  // Others of an epoch count on it.
  bool in_epoch() const { return in_epoch_; }
  // It is no part of the job any more: how it ends is nobody's failure.
  void remove() { removed_ = true; }
  bool removed() const { return removed_; }
  // It is being ended, after its part in the job was over: how it does says nothing of that.
  void end_it() { ending_ = true; }
  bool is_ended_by_us() const { return ending_; }
  // Nothing of it is left here.
  bool over() const { return !running_ && !pipes_[0] && !pipes_[1]; }
  pid_t pid() const { return pid_; }
  bool running() const { return running_; }
  int output_fd(Stream stream) const { return pipe(stream).get(); }
  // Hands on what can be read now, at most one buffer of it; closes the pipe at its end. Returns
  // whether anything was read.
  bool pump(Stream stream);
  // Hands on all that is left and closes both pipes.
  void drain();

 private:
  UniqueFd& pipe(Stream stream) { return pipes_[static_cast<int>(stream)]; }
  const UniqueFd& pipe(Stream stream) const { return pipes_[static_cast<int>(stream)]; }

  MemberStart start_;
  OutputTaker* const output_;
  pid_t pid_ = -1;
  bool running_ = false, removed_ = false, in_epoch_ = false, ending_ = false;
  UniqueFd pipes_[2];
};

}  // namespace rueda::launcher

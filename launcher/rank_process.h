// One started rank as the agent holds it: its process group and its two output pipes.
//
// Owns the reading ends. The agent's thread only. The process itself is reaped by the agent, which
// tells it with ended().
#pragma once

#include <sys/types.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "collectives/base/unique_fd.h"
#include "launcher/console.h"
#include "launcher/host_plan.h"
#include "launcher/output_copy.h"

namespace rueda::launcher {

class RankProcess {
 public:
  // Borrows the console, which outlives it.
  RankProcess(const RankPlace& place, Console* console);

  // What the rank writes goes there, too.
  void copy_to(OutputCopy copy) { copy_ = std::move(copy); }
  // Takes over a process and the reading ends of its pipes (non-blocking).
  void started(pid_t pid, UniqueFd out, UniqueFd err);
  void ended() { running_ = false; }
  // To the whole process group; nothing after ended(), when the id may belong to somebody else.
  void signal(int signal) const;

  const RankPlace& place() const { return place_; }
  pid_t pid() const { return pid_; }
  bool running() const { return running_; }
  int output_fd(Stream stream) const { return pipe(stream).fd.get(); }
  // Prints what can be read now, at most one buffer of it; closes the pipe at its end. Returns
  // whether anything was read.
  bool pump(Stream stream);
  // Prints all that is left, unfinished lines too, and closes both pipes.
  void drain();
  std::vector<std::string> last_words() const { return {words_.begin(), words_.end()}; }

 private:
  struct Pipe {
    UniqueFd fd;
    LineSplitter splitter;
  };
  Pipe& pipe(Stream stream) { return pipes_[static_cast<int>(stream)]; }
  const Pipe& pipe(Stream stream) const { return pipes_[static_cast<int>(stream)]; }
  LineSplitter::Emit printer(Stream stream);
  void remember(std::string_view line);

  const RankPlace place_;
  Console* const console_;
  pid_t pid_ = -1;
  bool running_ = false;
  Pipe pipes_[2];
  OutputCopy copy_;
  std::deque<std::string> words_;  // last lines of stderr
};

}  // namespace rueda::launcher

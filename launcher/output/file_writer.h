// FileWriter: writes files on a thread of its own, so that a folder that hangs (a dead NFS server,
// a FIFO in a file's place) silences nobody.
//
// Tasks run one after the other, in order. Each owns all that it needs: it may outlive the writer.
// Threads: every member from one thread. End: the destructor does not wait; what hangs ends with
// the process.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/base/status.h"

namespace rueda::launcher {

class FileWriter {
 public:
  using Task = std::function<Status()>;

  FileWriter();
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void add(Task task);
  // Everything that was added has ended.
  bool idle() const;
  // Waits for that, this long at most; false: it has not.
  bool wait(std::chrono::milliseconds limit) const;
  // What went wrong since the last call.
  std::vector<std::string> take_problems();
  // Tasks that have not begun never will.
  void forget();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // with the thread
};

}  // namespace rueda::launcher

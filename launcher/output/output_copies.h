// Copies of the ranks' output in files: FOLDER/rank.N/stdout and FOLDER/rank.N/stderr.
//
// Byte for byte what the ranks wrote, without prefixes. N has leading zeros, so that the folders
// sort by rank. Files of an earlier job are overwritten. A thread of its own writes, so that a file
// server that hangs freezes nobody: what waits for it is bounded by who asks congested().
//
// Threads: every member from one thread. Failure: after a write error nothing more is written to
// that file. End: the destructor does not wait; what hangs ends with the process.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/base/unique_fd.h"
#include "launcher/output/file_writer.h"
#include "launcher/output/output_format.h"

namespace rueda::launcher {

class OutputCopies {
 public:
  struct Files {
    std::string folder;  // of this rank
    std::array<UniqueFd, 2> streams;
  };

  // Makes the folders and files. The error names what cannot be made, and why: what is no regular
  // file, and another user's symbolic links, are refused. kDeadlineExceeded after kOpenLimit.
  // `goes_on`: files that are there are of this job, and go on.
  static Result<std::unique_ptr<OutputCopies>> create(const std::string& folder, int num_ranks,
                                                      bool goes_on = false);
  explicit OutputCopies(std::vector<Files> files);  // of each rank

  // A rank of a higher number than there were gets its files with its first bytes.
  void write(Rank rank, Stream stream, std::string_view bytes);
  // The files are slower than the ranks: read no more from them for now.
  bool congested() const;
  // A descriptor that becomes readable when that ends, and when there are problems.
  void add_to_poll(std::vector<pollfd>* fds) const;
  // The error of the first write that failed, once for each file; since the last call.
  std::vector<std::string> take_problems();
  // Waits until everything is written, while go_on(), asked now and then, says so: for kEndLimit at
  // most. The last problems.
  std::vector<std::string> finish(const std::function<bool()>& go_on);

  static constexpr std::chrono::seconds kOpenLimit{30}, kEndLimit{10};

 private:
  struct Shared;  // with the writer's tasks
  std::shared_ptr<Shared> shared_;
  FileWriter writer_;
};

}  // namespace rueda::launcher

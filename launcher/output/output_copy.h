// A copy of one rank's output in files: FOLDER/rank.N/stdout and FOLDER/rank.N/stderr.
//
// Byte for byte what the rank wrote, without prefixes. N has leading zeros, so that the folders
// sort by rank. Files of an earlier job are overwritten. Failure: after a write error nothing more
// is written to that file.
#pragma once

#include <string>
#include <string_view>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/base/unique_fd.h"
#include "launcher/output/output_format.h"

namespace rueda::launcher {

class OutputCopy {
 public:
  // Copies nothing.
  OutputCopy() = default;
  // Makes the folders and files. The error names what cannot be made, and why.
  static Result<OutputCopy> create(const std::string& folder, Rank rank, int num_ranks);

  // The error of the first write that fails, once for each stream.
  Status write(Stream stream, std::string_view bytes);

 private:
  std::string folder_;  // of this rank
  UniqueFd files_[2];
};

}  // namespace rueda::launcher

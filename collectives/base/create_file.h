// Creating files where the user says, in folders that others may write to as well (/tmp).
#pragma once

#include <string>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"

namespace rueda {

// Refuses what another user has planted: a symbolic link at `path` that belongs neither to this
// user nor to root nor to the owner of the folder that it lies in, which is what Linux calls a
// protected symlink. It would make us write into a file of that user's choice. Links on the way to
// the last component are not looked at.
Status check_link(const std::string& path);

// Creates or empties the file and opens it for writing; `what` is what errors say has failed. With
// kAppend it keeps what it holds, and is written to behind that.
// kPermissionDenied: check_link(); a link that appears meanwhile is not followed either. Never
// waits: a FIFO without a reader is an error (ENXIO).
enum class CreateFile { kEmpty, kAppend };
Result<UniqueFd> create_file(const std::string& path, const std::string& what,
                             CreateFile how = CreateFile::kEmpty);

}  // namespace rueda

// `ruedarun --horovod`: the folder of the Python package that makes `import horovod` mean rueda.
#pragma once

#include <string>
#include <vector>

#include "launcher/command/options.h"

namespace rueda::launcher {

// Where the folder may lie, best first: in the package that `program` (ruedarun's own full path) is
// part of, and in a package below an entry of `python_path` (PYTHONPATH, may be empty). Pure.
std::vector<std::string> horovod_folders(const std::string& program,
                                         const std::string& python_path);

// With --horovod, puts the first of those that exists before the ranks' PYTHONPATH, be it from
// `environment` or from -x; without, does nothing. FailedPrecondition says where it was looked for.
Status add_horovod_path(const std::vector<std::string>& environment, Options* options);

}  // namespace rueda::launcher

#include "launcher/job/horovod_path.h"

#include <algorithm>
#include <filesystem>

#include "launcher/job/rank_environment.h"

namespace rueda::launcher {

std::vector<std::string> horovod_folders(const std::string& program,
                                         const std::string& python_path) {
  // A wheel carries ruedarun as rueda/bin/ruedarun.
  const auto package = std::filesystem::path(program).parent_path().parent_path();
  std::vector<std::string> folders = {(package / "compat/horovod_path").string()};
  for (size_t begin = 0; begin < python_path.size();) {
    const size_t end = std::min(python_path.find(':', begin), python_path.size());
    if (end > begin)
      folders.push_back(python_path.substr(begin, end - begin) + "/rueda/compat/horovod_path");
    begin = end + 1;
  }
  return folders;
}

Status add_horovod_path(const std::vector<std::string>& environment, Options* options) {
  if (!options->horovod) return {};
  const auto base = base_environment(environment, *options);
  const char* value = find_variable(base, "PYTHONPATH");
  const std::string before = value == nullptr ? "" : value;
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  std::string looked;
  for (const std::string& folder : horovod_folders(program.string(), before)) {
    if (std::filesystem::is_directory(folder + "/horovod", ignored)) {
      const std::string path = std::filesystem::absolute(folder).string();
      options->environment.emplace_back("PYTHONPATH", path + (before.empty() ? "" : ":" + before));
      return {};
    }
    looked += (looked.empty() ? "" : ", ") + folder;
  }
  return failed_precondition(
      "--horovod: the Python package of rueda is not beside this program (looked for " + looked +
      "); give the folder that `python -m rueda.compat.horovod --path` prints with "
      "-x PYTHONPATH=FOLDER");
}

}  // namespace rueda::launcher

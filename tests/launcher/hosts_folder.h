// A folder with the scripts that find hosts and start their agents.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace rueda::testing {

// "there" starts agents, all on this machine: it is told a host's name and forgets it. "discover"
// prints the hosts of the moment.
class HostsFolder {
 public:
  HostsFolder() {
    static int next = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("elastic-hosts-" + std::to_string(getpid()) + "-" + std::to_string(next++));
    std::filesystem::create_directories(path_);
    write("there", "#!/bin/sh\nshift\nexec \"$@\"\n");
    write("discover", "#!/bin/sh\ncat " + (path_ / "hosts").string() + "\n");
    hosts_are("");
  }
  ~HostsFolder() { std::filesystem::remove_all(path_); }
  HostsFolder(const HostsFolder&) = delete;
  HostsFolder& operator=(const HostsFolder&) = delete;
  std::string file(const std::string& name) const { return path_ / name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    chmod(file(name).c_str(), 0700);
  }
  // What the discovery script prints from now on.
  void hosts_are(const std::string& text) const {
    std::ofstream(file("next")) << text;
    std::filesystem::rename(file("next"), file("hosts"));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace rueda::testing

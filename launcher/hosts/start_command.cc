#include "launcher/hosts/start_command.h"

#include <algorithm>

namespace rueda::launcher {

bool is_ssh(const std::string& program) {
  const std::string name = program.substr(program.rfind('/') + 1);
  return name == "ssh" || name == "rsh";
}

std::string quote_for_shell(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./:=@%+,").find(c) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

Result<std::vector<std::string>> split_words(const std::string& line) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else if (c == '\\' && quote != '\'' && i + 1 < line.size()) {
      words.back() += line[++i];
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) return invalid_argument("'" + line + "': a quote is not closed");
  return words;
}

Result<std::vector<std::string>> start_command(const StartRequest& request) {
  if (!is_host_name(request.host.host))
    return invalid_argument("'" + request.host.host + "' is no name of a host");
  std::vector<std::string> words = {"ssh"};
  if (!request.rsh_agent.empty()) {
    RUEDA_ASSIGN_OR_RETURN(words, split_words(request.rsh_agent));
    if (words.empty()) return invalid_argument("--rsh-agent: the command is empty");
  }
  const bool ssh = is_ssh(words.front());
  if (ssh) {
    // No prompt can be answered here; host keys are checked as the user's ssh does.
    words.insert(words.end(), {"-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-T"});
    const int port = request.host.port != 0 ? request.host.port : request.ssh_port;
    if (port != 0) words.insert(words.end(), {"-p", std::to_string(port)});
    if (!request.identity_file.empty()) words.insert(words.end(), {"-i", request.identity_file});
    if (!request.host.user.empty()) words.insert(words.end(), {"-l", request.host.user});
    words.push_back("--");
  }
  words.push_back(request.host.host);
  words.push_back(ssh ? quote_for_shell(request.program) : request.program);
  words.insert(words.end(), {"agent", "--host-index", std::to_string(request.host_index)});
  return words;
}

std::vector<std::string> srun_command(const std::vector<std::string>& hosts,
                                      const std::string& program) {
  std::string list;
  for (const std::string& host : hosts) list += (list.empty() ? "" : ",") + host;
  const std::string count = std::to_string(hosts.size());
  return {"srun",
          "--nodes=" + count,
          "--ntasks=" + count,
          "--ntasks-per-node=1",
          "--overlap",
          "--nodelist=" + list,
          "--input=all",
          "--kill-on-bad-exit=0",
          "--cpu-bind=none",
          "--mem=0",
          "--export=NONE",
          program,
          "agent",
          "--slurm"};
}

}  // namespace rueda::launcher

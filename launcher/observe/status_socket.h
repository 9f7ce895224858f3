// The socket at which tools (`rueda status`, `rueda drain`) ask a running job: an abstract Unix
// socket, so that nothing is left behind. It answers processes of the same user (and root) and no
// others.
//
// The conversation: the client sends one line, the question, and reads the answer to the end.
#pragma once

#include <poll.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"

namespace rueda::launcher {

// The job's side. Never blocks. One thread.
class ToolDoor {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  static Result<std::unique_ptr<ToolDoor>> open(const std::string& job_id);

  void add_to_poll(std::vector<pollfd>* fds) const;

  struct Question {
    int client = 0;
    std::string text;  // without the line's end
  };
  // Accepts, reads and writes what can be; clients that take too long are sent away.
  std::vector<Question> work(TimePoint now);
  // Does nothing if the client is gone.
  void answer(int client, std::string text);

 private:
  struct Client {
    int number = 0;
    UniqueFd fd;
    TimePoint until;
    std::string question, answer;
    size_t written = 0;
    bool asked = false, answered = false;
  };
  explicit ToolDoor(UniqueFd listener) : listener_(std::move(listener)) {}
  void accept_one(TimePoint now);
  bool serve(Client* client, TimePoint now, std::vector<Question>* questions);

  UniqueFd listener_;
  int last_number_ = 0;
  std::vector<Client> clients_;
};

// Jobs of this user on this host, by their sockets.
std::vector<std::string> running_jobs();
// A job's answer to a question. kNotFound: there is no such job.
Result<std::string> ask_job(const std::string& job_id, const std::string& question);

}  // namespace rueda::launcher

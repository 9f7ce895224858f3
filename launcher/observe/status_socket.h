// The socket at which tools (`rueda status`, `rueda drain`) ask a running job: an abstract Unix
// socket, so that nothing is left behind. It answers processes of the same user (and root) and no
// others; clients believe the same user's (and root's) and no others.
//
// The conversation: the client sends one line, the question, and reads the answer to the end.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <compare>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"

namespace rueda::launcher {

// The job's side. Never blocks. One thread.
class ToolDoor {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // ranks, command: for people who look for their job.
  static Result<std::unique_ptr<ToolDoor>> open(const std::string& job_id, size_t ranks,
                                                const std::string& command);

  void add_to_poll(std::vector<pollfd>* fds) const;

  struct Question {
    int client = 0;
    std::string text;  // without the line's end
  };
  // Accepts, reads and writes what can be; clients that take too long are sent away.
  std::vector<Question> work(TimePoint now);
  // Does nothing if the client is gone.
  void answer(int client, std::string text);
  // Writes what can be, and reads nothing: no question is lost that comes between two work().
  void send_answers();

 private:
  struct Client {
    int number = 0;
    UniqueFd fd;
    TimePoint until;
    std::string question, answer;
    size_t written = 0;
    bool asked = false, answered = false;
  };
  ToolDoor(UniqueFd listener, UniqueFd pause, std::string title)
      : listener_(std::move(listener)), pause_(std::move(pause)), title_(std::move(title)) {}
  void accept_all(TimePoint now);
  void welcome(UniqueFd fd, TimePoint now);
  bool hear(Client* client, TimePoint now, std::vector<Question>* questions);
  static bool tell(Client* client);

  UniqueFd listener_;
  UniqueFd pause_;  // a timer
  bool paused_ = false;
  const std::string title_;
  int last_number_ = 0;
  std::vector<Client> clients_;
};

// 16 hexadecimal digits, as make_job_id() makes them.
bool is_job_id(std::string_view text);
struct RunningJob {
  uid_t user = 0;
  std::string id;
  auto operator<=>(const RunningJob&) const = default;
};
// Jobs of this user on this host, for root of all users, by their sockets; anybody may bind such a
// name, so each is asked whose it is.
std::vector<RunningJob> running_jobs();
// What the door answers by itself: "pid 4711, 8 ranks, since 2026-11-24 01:23:45: python train.py";
// the pid is of the process that was started as ruedarun.
inline constexpr std::string_view kTitleQuestion = "title";
// A job's answer to a question. kNotFound: there is no such job.
Result<std::string> ask_job(const std::string& job_id, const std::string& question);

}  // namespace rueda::launcher

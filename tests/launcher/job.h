// A ruedarun that a test has started, and every process below it.
//
// Each job carries a variable of its own in its environment; whatever /proc shows with it belongs
// to the job, also after it has lost its parents. Waits end at kPatience and fail the test.
// Owns the process and the pipes; the destructor kills what is left of the job.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "collectives/base/unique_fd.h"

namespace rueda::testing {

inline constexpr std::chrono::seconds kPatience{90};

class Job {
 public:
  struct Setup {
    std::vector<std::string> environment;  // "NAME=value", added to ours
    bool errors_with_output = false;       // stderr and stdout are one pipe
    std::string input;                     // on stdin
    int terminal = -1;                     // stdin, stdout and stderr, when not -1
    std::string program;                   // instead of ruedarun
  };
  explicit Job(const std::vector<std::string>& arguments) : Job(arguments, Setup{}) {}
  Job(const std::vector<std::string>& arguments, const Setup& setup);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Reads until stdout and stderr together hold `text` this many times; false after kPatience.
  bool wait_for_output(const std::string& text, int times = 1);
  // Reads until both streams end and the process has ended; its exit code, 128 + signal if killed,
  // -1 after kPatience.
  int wait();
  // True as soon as no process of the job is left; false after kPatience.
  bool wait_until_gone() const;

  pid_t pid() const { return pid_; }
  pid_t agent() const;  // the driver's child; -1 if there is none
  std::vector<pid_t> processes() const;
  void close_output() { out_.reset(); }
  const std::string& out() const { return out_text_; }
  const std::string& err() const { return err_text_; }
  std::vector<std::string> out_lines() const;
  std::vector<std::string> err_lines() const;

 private:
  bool read_some(std::chrono::steady_clock::time_point deadline);

  std::string canary_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  UniqueFd out_, err_;
  std::string out_text_, err_text_;
};

// Waits for a condition that only looking tells. False after kPatience.
bool eventually(const std::function<bool()>& condition);
std::vector<std::string> lines_of(const std::string& text);

}  // namespace rueda::testing

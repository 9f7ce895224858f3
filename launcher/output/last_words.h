// What is remembered of a rank's stderr for the report at the end: its last lines. Of Python's
// traceback that is where the user's own code was, where it ended, and the exception:
//
//   loss is nan
//   Traceback (most recent call last):
//     File "/home/me/train.py", line 9, in <module>
//       step(batch)
//     ...                                               (frames of libraries, marks, repetitions)
//     File "/opt/.../site-packages/torch/nn.py", line 5, in forward
//       return f(x)
//   ValueError: wrong shape
//
// The whole of it has been printed before. Pure.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rueda::launcher {

class LastWords {
 public:
  void add(std::string_view line);
  std::vector<std::string> lines() const;

 private:
  using Lines = std::vector<std::string>;
  struct Traceback {
    explicit Traceback(std::string first) : head(std::move(first)) {}

    std::string head;
    bool open = true;     // its frames come
    Lines users, last;    // frames: the innermost of the user's, the innermost
    int since_users = 0;  // frames of libraries
    std::string exception;
    Lines after;                  // what follows: the first lines,
    std::deque<std::string> end;  // and the last,
    bool cut = false;             // with others between
  };
  void begin_traceback(std::string head);
  static void add_to_frames(Traceback* traceback, std::string line);

  std::deque<std::string> before_;      // a traceback, or all that there is
  std::optional<Traceback> traceback_;  // the last one
};

}  // namespace rueda::launcher

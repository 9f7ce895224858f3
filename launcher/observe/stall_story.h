// What is said of a stall again: while nothing but its age has changed, a line. Pure.
#pragma once

#include <string>
#include <vector>

namespace rueda::launcher {

class StallStory {
 public:
  // lines: of explain_waits(), for the first time (anew) or once more. Returns what to say.
  std::vector<std::string> tell(std::vector<std::string> lines, bool anew);

 private:
  std::string told_;
};

}  // namespace rueda::launcher

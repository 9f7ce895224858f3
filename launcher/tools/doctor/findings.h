// Findings: the doctor's opinion of a machine: what each fact means, and what to do about it. Pure.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/tools/doctor/machine.h"

namespace rueda::doctor {

enum class Level {
  kFine,
  kNote,     // good to know; something may be slower or not work
  kProblem,  // likely to fail, or much slower than it could be
  kBlocker,  // no job can start here
};
const char* level_name(Level level);  // "fine", "note", "problem", "blocker"

struct Finding {
  std::string section;  // "Network"
  std::string name;     // "open files"
  std::string value;    // as found
  Level level = Level::kFine;
  std::string advice;     // what to do; empty when fine
  bool compared = false;  // hosts of one job should have the same value
};

struct Report {
  std::string host;
  std::vector<Finding> findings;
};

Report examine(const Machine& machine);

// What only the comparison of hosts shows: values that differ, ranks' worst level stays theirs.
std::vector<Finding> compare(const std::vector<Report>& reports);

Level worst(const std::vector<Finding>& findings);

// For people: sections, one line for each fact, "what to do" at the end.
std::string as_text(const Report& report);
std::string as_text(const std::vector<Report>& reports, const std::vector<Finding>& differences);
// One line:
//   {"host":..,"worst":..,"findings":[{"section":..,"name":..,"value":..,"level":..,
//                                      "advice":..,"compared":..}]}
std::string as_json(const Report& report);
// The reverse. InvalidArgument says where the text is no such line.
Result<Report> from_json(const std::string& text);

}  // namespace rueda::doctor

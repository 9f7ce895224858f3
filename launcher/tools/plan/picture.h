// A schedule as pictures: for each step, which rank computes which (query, key) pairs. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/tools/plan/schedule.h"

namespace rueda::plan {

// One step. Cell (row, column) is of queries and keys around row / cells and column / cells of the
// sequence; -1: nobody computes anything there, else the rank that computes most.
struct Panel {
  std::vector<int> rank;
  std::vector<double> share;  // of the cell's pairs that are computed, 0 to 1
};

struct Picture {
  int64_t cells = 0;          // of a side
  std::vector<Panel> panels;  // by step
  std::vector<int> owner;     // of the tokens of each row
};

// At most so many cells to a side; with fewer tokens, a cell is a token and the picture is exact.
Picture draw(const PlanOptions& options, const Schedule& schedule, int64_t most_cells);

std::string as_text(const Picture& picture);
std::string as_svg(const PlanOptions& options, const Schedule& schedule, const Picture& picture);
// Messages, bytes, work and memory of each rank.
std::string as_table(const Schedule& schedule);
// What is planned, in a line.
std::string title_of(const PlanOptions& options);

}  // namespace rueda::plan

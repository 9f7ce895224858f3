// The figures of `rueda bench attention`: what was measured, what was wanted. Pure.
#pragma once

#include <string>
#include <vector>

namespace rueda::bench {

enum class Verdict { kMet, kShort, kShown };  // kShown: no goal, or another program's to judge

struct Figure {
  std::string id;    // "A10"
  std::string what;  // "forward f32 d64, share of the core's peak"
  std::string measured;
  std::string goal;
  Verdict verdict = Verdict::kShown;
  double value = 0;  // what is compared with the goal
};

// Median, least and greatest of per-round values.
struct Spread {
  double median = 0, least = 0, greatest = 0;
};
Spread spread_of(std::vector<double> values);

// A figure that must be at least, or at most, the goal; `unit` follows each number ("x", " %").
Figure at_least(std::string id, std::string what, const Spread& measured, double goal,
                const char* unit, const std::string& more = "");
Figure at_most(std::string id, std::string what, const Spread& measured, double goal,
               const char* unit, const std::string& more = "");

std::string table_of(const std::vector<Figure>& figures);
std::string json_of(const std::vector<Figure>& figures);

}  // namespace rueda::bench

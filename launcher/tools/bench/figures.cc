#include "launcher/tools/bench/figures.h"

#include <algorithm>
#include <cstdio>

#include "launcher/tools/bench/measure.h"

namespace rueda::bench {
namespace {

std::string number(double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f%s", value >= 100 ? 0 : value >= 10 ? 1 : 2, value, unit);
  return text;
}

Figure compared(std::string id, std::string what, const Spread& measured, double goal,
                const char* unit, const std::string& more, bool met, const char* sign) {
  Figure figure;
  figure.id = std::move(id);
  figure.what = std::move(what);
  figure.measured = number(measured.median, unit);
  if (measured.least != measured.greatest)
    figure.measured +=
        " (" + number(measured.least, "") + " to " + number(measured.greatest, "") + ")";
  if (!more.empty()) figure.measured += ", " + more;
  figure.goal = sign + number(goal, unit);
  figure.verdict = met ? Verdict::kMet : Verdict::kShort;
  figure.value = measured.median;
  return figure;
}

const char* word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kMet: return "met";
    case Verdict::kShort: return "SHORT";
    case Verdict::kShown: break;
  }
  return "";
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

Figure at_least(std::string id, std::string what, const Spread& measured, double goal,
                const char* unit, const std::string& more) {
  return compared(std::move(id), std::move(what), measured, goal, unit, more,
                  measured.median >= goal, ">= ");
}

Figure at_most(std::string id, std::string what, const Spread& measured, double goal,
               const char* unit, const std::string& more) {
  return compared(std::move(id), std::move(what), measured, goal, unit, more,
                  measured.median <= goal, "<= ");
}

std::string table_of(const std::vector<Figure>& figures) {
  size_t what = 4, measured = 8;
  for (const Figure& figure : figures) {
    what = std::max(what, figure.what.size());
    measured = std::max(measured, figure.measured.size());
  }
  std::string out;
  const auto row = [&](const std::string& id, const std::string& a, const std::string& b,
                       const std::string& c, const std::string& d) {
    out += id + std::string(id.size() < 6 ? 6 - id.size() : 1, ' ') + a +
           std::string(what + 2 - a.size(), ' ') + b + std::string(measured + 2 - b.size(), ' ') +
           c + std::string(c.size() < 10 ? 10 - c.size() : 1, ' ') + d;
    while (out.back() == ' ') out.pop_back();
    out += '\n';
  };
  row("id", "what", "measured", "goal", "");
  for (const Figure& f : figures) row(f.id, f.what, f.measured, f.goal, word_of(f.verdict));
  return out;
}

std::string json_of(const std::vector<Figure>& figures) {
  std::string out = "{\"format\": 1, \"figures\": [";
  for (const Figure& f : figures) {
    char value[32];
    std::snprintf(value, sizeof(value), "%.6g", f.value);
    out += (&f == &figures.front() ? "\n  " : ",\n  ") + std::string("{\"id\": ") +
           json_string(f.id) + ", \"what\": " + json_string(f.what) +
           ", \"measured\": " + json_string(f.measured) + ", \"goal\": " + json_string(f.goal) +
           ", \"verdict\": \"" + word_of(f.verdict) + "\", \"value\": " + value + "}";
  }
  return out + "\n]}\n";
}

}  // namespace rueda::bench

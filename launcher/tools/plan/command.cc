#include "launcher/tools/plan/command.h"

#include <cstdio>
#include <fstream>

#include "launcher/command/options.h"
#include "launcher/tools/plan/picture.h"

namespace rueda::plan {
namespace {

int fail(const Status& status, int code) {
  std::fprintf(stderr, "rueda attention plan: %s\n", status.message().c_str());
  return code;
}

}  // namespace

int run_attention(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != "plan") {
    const bool asked = !arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h");
    std::fputs("Usage: rueda attention plan   what each rank does (rueda attention plan --help)\n",
               asked ? stdout : stderr);
    return asked ? 0 : launcher::kUsageError;
  }
  auto parsed = parse_plan_options({arguments.begin() + 1, arguments.end()});
  if (!parsed.ok()) return fail(parsed.status(), launcher::kUsageError);
  const PlanOptions options = std::move(parsed).value();
  if (options.help) {
    std::fputs(options.text.c_str(), stdout);
    return 0;
  }
  auto loaded = load_schedule(options);
  if (!loaded.ok()) return fail(loaded.status(), 1);
  const Schedule& schedule = loaded.value();
  if (!options.svg.empty()) {
    const std::string svg = as_svg(options, schedule, draw(options, schedule, 64));
    if (options.svg == "-") {
      std::fputs(svg.c_str(), stdout);
      return 0;
    }
    std::ofstream file(options.svg);
    if (!(file << svg << std::flush))
      return fail(invalid_argument("cannot write " + options.svg), 1);
  }
  std::string text =
      title_of(options) + "\n" + as_table(schedule) + as_text(draw(options, schedule, 32));
  for (const RankPlan& rank : schedule.ranks)
    if (options.program) text += "\n" + rank.program;
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace rueda::plan

// rueda: questions about an installation. `rueda doctor` is what to read first when something does
// not work, and to send along when asking about it.
#include <cstdio>
#include <string>

#include "launcher/options.h"
#include "launcher/probe.h"

int main(int argc, char** argv) {
  const std::string word = argc == 2 ? argv[1] : "";
  if (word == "doctor") {
    std::fputs(rueda::launcher::doctor_text().c_str(), stdout);
    return 0;
  }
  if (word == "--version" || word == "-v") {
    std::puts(RUEDA_LAUNCHER_VERSION);
    return 0;
  }
  const bool asked = word == "--help" || word == "-h";
  std::fputs(
      "Usage: rueda doctor       what was found on this machine, and its limits\n"
      "       rueda --version\n"
      "Jobs are started with ruedarun.\n",
      asked ? stdout : stderr);
  return asked ? 0 : rueda::launcher::kUsageError;
}

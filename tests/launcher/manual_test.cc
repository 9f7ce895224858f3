#include "launcher/tools/manual/manual.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "launcher/command/options.h"

namespace rueda::launcher {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const ManualOption& option_of(const Manual& manual, const std::string& spelling) {
  for (const ManualOption& option : manual.options) {
    if (std::count(option.spellings.begin(), option.spellings.end(), spelling)) return option;
  }
  FAIL("no option " << spelling);
  throw 0;
}

TEST_CASE("every option of --help is in the manual, the completions and the parser", "[manual]") {
  const Manual manual = manual_of_ruedarun("1.2.3");
  const auto help = parse_options({"--help"}, "");
  REQUIRE(help.ok());
  size_t spellings = 0;
  for (const ManualOption& option : manual.options) {
    for (const std::string& spelling : option.spellings) {
      INFO(spelling);
      CHECK(has(help.value().text, spelling));
      const std::string bash = bash_completion(manual);
      CHECK((has(bash, "\"" + spelling + " ") || has(bash, " " + spelling + " ") ||
             has(bash, " " + spelling + "\"")));
      CHECK(has(zsh_completion(manual), "'" + spelling + "["));
      ++spellings;
    }
  }
  CHECK(spellings > 50);
  CHECK(option_of(manual, "-np").takes_value);
  CHECK(option_of(manual, "--config-file").takes_file);
  CHECK_FALSE(option_of(manual, "--verbose").takes_value);
}

TEST_CASE("a manual page has its version, and no line that troff takes for a command", "[manual]") {
  const Manual manual = manual_of_ruedarun("1.2.3");
  const std::string page = man_page(manual);
  CHECK(has(page, ".TH ruedarun 1 \"\" \"rueda 1.2.3\""));
  CHECK(has(page, "\\-\\-num\\-proc"));
  Manual odd = manual;
  odd.options = {{{"-x"}, false, false, "Options", ".so /etc/passwd"}};
  CHECK(has(man_page(odd), "\n\\&.so"));
}

TEST_CASE("quotes and brackets of a help text do not end what a shell reads", "[manual]") {
  const Manual odd{.program = "p", .options = {{{"--o"}, true, false, "Options", "it's [x]: y"}}};
  CHECK(has(zsh_completion(odd), "'--o[it'\\''s \\[x\\]\\: y]:value: '"));
  CHECK(has(fish_completion(odd), "-l o -x -d 'it'\\''s [x]: y'"));
}

TEST_CASE("the tool's commands are completed", "[manual]") {
  const Manual manual = manual_of_rueda("1");
  CHECK(has(bash_completion(manual), "doctor "));
  CHECK(has(fish_completion(manual), "-a doctor -d "));
  CHECK(has(man_page(manual), ".B explain"));
}

}  // namespace
}  // namespace rueda::launcher

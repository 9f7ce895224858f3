#include "launcher/command/deepspeed_config.h"

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

#include "launcher/command/json_text.h"

using rueda::launcher::add_deepspeed_config;
using rueda::launcher::Options;
using rueda::launcher::what_is_no_json_object;

namespace {

std::string problem(const std::string& text) { return what_is_no_json_object(text).value_or("ok"); }

}  // namespace

TEST_CASE("a JSON object is told from what is none, and by which line", "[json]") {
  for (const char* text : {"{}", " { } \n", R"({"a": [1, -2.5e-3, "x\n\u00e9", true, null, {}]})",
                           R"({"a": {"b": []}, "c": false})"})
    CHECK(problem(text) == "ok");
  CHECK(problem("") == "line 1: '{' expected");
  CHECK(problem("[]") == "line 1: '{' expected");
  CHECK(problem("{\n\"a\": 1,\n}") == "line 3: '\"' expected");
  CHECK(problem("{\"a\" 1}") == "line 1: ':' expected");
  CHECK(problem("{\"a\": 1 \"b\": 2}") == "line 1: ',' or '}' expected");
  CHECK(problem("{\"a\": }") == "line 1: a value expected");
  CHECK(problem("{\"a\": 01}") == "line 1: a number expected");
  CHECK(problem("{\"a\": True}") == "line 1: a value expected");
  CHECK(problem("{\"a\": 1.}") == "line 1: digits expected");
  CHECK(problem("{\"a\": \"x\n\"}") == "line 1: a text without its end");
  CHECK(problem(R"({"a": "\x"})") == "line 1: a \\ that means nothing");
  CHECK(problem("{} {}") == "line 1: nothing expected behind the last '}'");
  CHECK(problem("// comment\n{}") == "line 1: '{' expected");
  CHECK(problem("{\"a\": " + std::string(100000, '[')) ==
        "line 1: too many brackets within each other");
  CHECK(problem("{\"a") == "line 1: a text without its end");
}

TEST_CASE("no prefix of a JSON object is one", "[json]") {
  const std::string text = R"({"a": [1.5e3, {"b": "c\u0041"}], "d": false})";
  for (size_t length = 0; length < text.size(); ++length) {
    INFO(length);
    CHECK(problem(text.substr(0, length)) != "ok");
  }
  CHECK(problem(text) == "ok");
}

TEST_CASE("ranks are told the absolute path of a file that is there", "[options]") {
  const auto folder = std::filesystem::temp_directory_path() / "rueda_deepspeed_config_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "good.json") << "{}";
  std::ofstream(folder / "bad.json") << "{\n  stage: 1\n}";
  Options options;
  CHECK(add_deepspeed_config(&options).ok());
  CHECK(options.settings.empty());
  options.deepspeed_config = std::filesystem::relative(folder / "good.json").string();
  CHECK(add_deepspeed_config(&options).ok());
  REQUIRE(options.settings.size() == 1);
  CHECK(options.settings[0].variable == "RUEDA_DEEPSPEED_CONFIG");
  CHECK(options.settings[0].value == (folder / "good.json").string());
  options.deepspeed_config = (folder / "bad.json").string();
  CHECK(add_deepspeed_config(&options).message().find("bad.json is no JSON object: line 2: '\"'") !=
        std::string::npos);
  options.deepspeed_config = (folder / "none.json").string();
  CHECK(add_deepspeed_config(&options).message().find("No such file") != std::string::npos);
  options.deepspeed_config = folder.string();
  CHECK(add_deepspeed_config(&options).message().find("directory") != std::string::npos);
  std::filesystem::remove_all(folder);
}

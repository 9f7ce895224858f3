// Names that have broken writers of JSON.
#pragma once

#include <string>

namespace rueda::testing {

inline const std::string kHostile[] = {"plain",
                                       "with \"quotes\" and \\",
                                       "line\nbreak\ttab\x01\x7f",
                                       "\xff\xfe not text",
                                       "cut \xe2\x82",
                                       "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x92\x83",
                                       "\xed\xa0\x80",
                                       "{rank}",
                                       "",
                                       "</script>%s%n"};

}  // namespace rueda::testing
